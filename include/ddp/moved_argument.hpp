#pragma once
/// moved_argument.hpp: an argument of forward() with its tensors on another device.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "ddp/tensor_visitor.hpp"

namespace ddp::detail {

/// A container says that it can be copied even where what it holds cannot.
template <class T>
constexpr bool can_be_copied() {
  if constexpr (requires { typename T::value_type; })
    return std::is_copy_constructible_v<T> && can_be_copied<typename T::value_type>();
  else
    return std::is_copy_constructible_v<T>;
}

/// `T` is what a forwarding reference T&& was deduced as. A type that TensorVisitor knows is copied and its tensors
/// are moved, those in pinned memory without waiting; any other, also inside of containers, and one that cannot be
/// copied, is passed as it is. Errors: std::logic_error for a type of yours whose visit() takes const tensors alone.
template <class T>
class MovedArgument {
  using Value = std::remove_cvref_t<T>;
  static constexpr bool kMoves = can_be_copied<Value>() && !requires { TensorVisitor<Value>::kHoldsNoTensors; };

 public:
  MovedArgument(T&& argument, at::Device device) : given_(std::addressof(argument)) {
    if constexpr (kMoves) {
      moved_.emplace(argument);
      Move move{device};
      visit_tensors(*moved_, move);
    }
  }
  /// Of the same category as the argument. Once.
  T&& get() {
    if constexpr (kMoves)
      return static_cast<T&&>(*moved_);
    else
      return static_cast<T&&>(*given_);
  }

 private:
  struct Move {
    using LeavesUnknownTypes = void;  // see TensorVisitor
    at::Device device;
    void operator()(at::Tensor& tensor) const {
      if (tensor.defined() && tensor.device() != device) tensor = tensor.to(device, /*non_blocking=*/true);
    }
    void operator()(const at::Tensor& tensor) const {
      if (tensor.defined() && tensor.device() != device)
        throw std::logic_error(
            "ddp: device_ids asks for inputs to be moved, but visit() of an input's ddp::TensorVisitor takes const "
            "tensors: let it take auto&");
    }
  };
  struct Nothing {};

  std::remove_reference_t<T>* given_;
  std::conditional_t<kMoves, std::optional<Value>, Nothing> moved_;
};

}  // namespace ddp::detail
