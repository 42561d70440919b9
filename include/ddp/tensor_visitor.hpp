#pragma once
/// tensor_visitor.hpp: finds the tensors in what a module's forward() returns.

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddp {

/// How to visit the tensors of a type. Known: Tensor, tuple, pair, vector, array, optional, map,
/// unordered_map of known types, and numbers, enums and strings, which hold none. For a struct of
/// yours, specialise it:
///
///     template <> struct ddp::TensorVisitor<Detections> {
///       template <class F> static void visit(const Detections& d, F& f) { ddp::visit_tensors(d.boxes, f); }
///     };
template <class T>
struct TensorVisitor {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>,
                "forward() returns a type whose tensors are not known: specialise ddp::TensorVisitor for it");
  template <class F>
  static void visit(const T&, F&) {}
};

/// Calls f(const at::Tensor&) for each tensor in `value`, undefined ones too.
template <class T, class F>
void visit_tensors(const T& value, F& f) {
  TensorVisitor<T>::visit(value, f);
}

template <>
struct TensorVisitor<at::Tensor> {
  template <class F>
  static void visit(const at::Tensor& tensor, F& f) {
    f(tensor);
  }
};

template <class... T>
struct TensorVisitor<std::tuple<T...>> {
  template <class F>
  static void visit(const std::tuple<T...>& values, F& f) {
    std::apply([&](const auto&... value) { (visit_tensors(value, f), ...); }, values);
  }
};

template <class A, class B>
struct TensorVisitor<std::pair<A, B>> {
  template <class F>
  static void visit(const std::pair<A, B>& values, F& f) {
    visit_tensors(values.first, f);
    visit_tensors(values.second, f);
  }
};

template <class T>
struct TensorVisitor<std::optional<T>> {
  template <class F>
  static void visit(const std::optional<T>& value, F& f) {
    if (value) visit_tensors(*value, f);
  }
};

namespace detail {
template <class Range>
struct RangeVisitor {
  template <class F>
  static void visit(const Range& values, F& f) {
    for (const auto& value : values) visit_tensors(value, f);
  }
};
}  // namespace detail

template <class T, class... Rest>
struct TensorVisitor<std::vector<T, Rest...>> : detail::RangeVisitor<std::vector<T, Rest...>> {};
template <class T, std::size_t n>
struct TensorVisitor<std::array<T, n>> : detail::RangeVisitor<std::array<T, n>> {};
template <class... T>
struct TensorVisitor<std::map<T...>> : detail::RangeVisitor<std::map<T...>> {};
template <class... T>
struct TensorVisitor<std::unordered_map<T...>> : detail::RangeVisitor<std::unordered_map<T...>> {};

template <class T>
struct TensorVisitor<const T> : TensorVisitor<T> {};

}  // namespace ddp
