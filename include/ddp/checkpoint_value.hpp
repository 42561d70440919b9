#pragma once
/// checkpoint_value.hpp: a value of the program's own in a Checkpoint.

#include <ATen/core/ivalue.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace ddp {

/// IValue: None, bool, int, double, string, tensor, or a list, tuple or dict of such.
struct CheckpointValue {
  std::function<c10::IValue()> state;
  /// Checks what was saved and returns what puts it in place. Errors: std::exception; then nothing is loaded.
  std::function<std::function<void()>(const c10::IValue& saved)> stage;

  /// A bool, number, string, tensor, or a vector of such. A tensor is replaced, not written into.
  /// Lifetime: refers to `value`.
  template <class T>
  static CheckpointValue of(T& value);
};

namespace detail {

template <class T>
concept Vector = requires(T all) { all.push_back(std::declval<typename T::value_type>()); } &&
                 !std::same_as<T, std::string>;

template <class T>
c10::IValue to_ivalue(const T& value) {
  if constexpr (Vector<T>) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const auto& element : value) list.push_back(to_ivalue<typename T::value_type>(element));
    return list;
  } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
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
    expect(saved.isInt() && std::in_range<T>(saved.toInt()), "an int of its range");
    return static_cast<T>(saved.toInt());
  } else if constexpr (std::floating_point<T>) {
    expect(saved.isDouble() || saved.isInt(), "a float");
    return saved.isInt() ? static_cast<T>(saved.toInt()) : static_cast<T>(saved.toDouble());
  } else if constexpr (std::same_as<T, std::string>) {
    expect(saved.isString(), "a str");
    return saved.toStringRef();
  } else {
    static_assert(std::same_as<T, at::Tensor>, "a checkpoint keeps values of this type as CheckpointValue");
    expect(saved.isTensor(), "a tensor");
    return saved.toTensor().clone();
  }
}

}  // namespace detail

template <class T>
CheckpointValue CheckpointValue::of(T& value) {
  return {.state = [&value] { return detail::to_ivalue<T>(value); },
          .stage = [&value](const c10::IValue& saved) -> std::function<void()> {
            return [&value, staged = detail::from_ivalue<T>(saved)] { value = staged; };
          }};
}

}  // namespace ddp
