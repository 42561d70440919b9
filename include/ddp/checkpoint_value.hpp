#pragma once
/// checkpoint_value.hpp: a value of the program's own in a Checkpoint.

#include <ATen/core/ivalue.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace ddp {

/// IValue: None, bool, int, double, string, tensor, or a list, tuple or dict of such.
struct CheckpointValue {
  std::function<c10::IValue()> state;  ///< no collective in it
  /// Checks what was saved and returns what puts it in place. Errors: std::exception; then nothing is loaded.
  std::function<std::function<void()>(const c10::IValue& saved)> stage;
  /// Each rank keeps its own, as a generator that is seeded by rank, and gets it back in a run of as many ranks; else
  /// every rank gets rank 0's, whose `state` alone is called.
  bool of_each_rank = false;

  /// A bool, number, string, tensor, or a vector of such. A tensor is replaced, not written into: by one on the device
  /// of the tensor that is there, else on the CPU.
  /// Lifetime: refers to `value`.
  template <class T>
  static CheckpointValue of(T& value);
};

namespace detail {

template <class T>
concept Vector =
    requires(T all) { all.push_back(std::declval<typename T::value_type>()); } && !std::same_as<T, std::string>;

template <class T>
c10::IValue to_ivalue(const T& value) {
  if constexpr (Vector<T>) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const auto& element : value) list.push_back(to_ivalue<typename T::value_type>(element));
    return list;
  } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    if (static_cast<std::int64_t>(value) < 0 && value > 0)
      throw std::runtime_error("an integer beyond 63 bits cannot be written");
    return static_cast<std::int64_t>(value);
  } else if constexpr (std::floating_point<T>) {
    return static_cast<double>(value);
  } else {
    return value;
  }
}

inline void expect(bool is_right, const char* kind) {
  if (!is_right) throw std::runtime_error(std::string("it takes ") + kind);
}

// As std::in_range(), which takes no char.
template <class T>
bool is_in_range(std::int64_t number) {
  using Limits = std::numeric_limits<T>;
  if constexpr (Limits::is_signed)
    return number >= Limits::min() && number <= Limits::max();
  else
    return number >= 0 && static_cast<std::uint64_t>(number) <= Limits::max();
}

template <class T>
T from_ivalue(const c10::IValue& saved) {
  if constexpr (Vector<T>) {
    expect(saved.isList(), "a list");
    T all;
    for (const auto& element : saved.toListRef()) all.push_back(from_ivalue<typename T::value_type>(element));
    return all;
  } else if constexpr (std::same_as<T, bool>) {
    expect(saved.isBool(), "a bool");
    return saved.toBool();
  } else if constexpr (std::integral<T>) {
    expect(saved.isInt() && is_in_range<T>(saved.toInt()), "an int of its range");
    return static_cast<T>(saved.toInt());
  } else if constexpr (std::floating_point<T>) {
    expect(saved.isDouble() || saved.isInt(), "a float");
    return saved.isInt() ? static_cast<T>(saved.toInt()) : static_cast<T>(saved.toDouble());
  } else if constexpr (std::same_as<T, std::string>) {
    expect(saved.isString(), "a str");
    return saved.toStringRef();
  } else {
    static_assert(std::same_as<T, at::Tensor>, "a checkpoint keeps values of this type as CheckpointValue");
    expect(saved.isTensor() || saved.isNone(), "a tensor");
    return saved.isTensor() ? saved.toTensor().clone() : at::Tensor();
  }
}

}  // namespace detail

template <class T>
CheckpointValue CheckpointValue::of(T& value) {
  return {.state = [&value] { return detail::to_ivalue<T>(value); },
          .stage = [&value](const c10::IValue& saved) -> std::function<void()> {
            auto staged = detail::from_ivalue<T>(saved);
            if constexpr (std::same_as<T, at::Tensor>)
              if (staged.defined() && value.defined())
                staged = staged.to(value.device()).requires_grad_(value.requires_grad());
            return [&value, staged] { value = staged; };
          }};
}

}  // namespace ddp
