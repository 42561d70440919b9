#pragma once
/// tensor_visitor.hpp: finds the tensors in what a module's forward() returns and in batches.

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
/// yours, specialise it; `const Detections&` will do for what forward() returns, but not for batches that
/// prefetch() moves:
///
///     template <> struct ddp::TensorVisitor<Detections> {
///       static void visit(auto& d, auto& f) { ddp::visit_tensors(d.boxes, f); }
///     };
template <class T>
struct TensorVisitor {
  static constexpr bool kHoldsNoTensors = true;
  template <class F>
  static void visit(const T&, F&) {
    constexpr bool is_known = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>;
    constexpr bool may_be_unknown = requires { typename F::LeavesUnknownTypes; };
    static_assert(
        is_known || may_be_unknown,
        "forward() or a data set gives a type whose tensors are not known: specialise ddp::TensorVisitor for it");
  }
};

/// Calls f(tensor) for each tensor in `value`, undefined ones too: with a const one where `value` is const.
template <class T, class F>
void visit_tensors(T&& value, F& f) {
  TensorVisitor<std::remove_cvref_t<T>>::visit(value, f);
}

namespace detail {
template <class F>
struct Replacement {
  F& f;
  void operator()(at::Tensor& tensor) const { tensor = f(std::as_const(tensor)); }
  template <class Constant>
  void operator()(const Constant&) const {
    static_assert(!std::is_same_v<Constant, at::Tensor>,
                  "the tensors of a batch are to be replaced: let visit() of its ddp::TensorVisitor take auto&");
  }
};
}  // namespace detail

/// Replaces each tensor in `value` by f(tensor), undefined ones too.
template <class T, class F>
void replace_tensors(T& value, F& f) {
  detail::Replacement<F> replacement{f};
  visit_tensors(value, replacement);
}

template <>
struct TensorVisitor<at::Tensor> {
  static void visit(auto& tensor, auto& f) { f(tensor); }
};

template <class... T>
struct TensorVisitor<std::tuple<T...>> {
  static void visit(auto& values, auto& f) {
    std::apply([&](auto&... value) { (visit_tensors(value, f), ...); }, values);
  }
};

template <class A, class B>
struct TensorVisitor<std::pair<A, B>> {
  static void visit(auto& values, auto& f) {
    visit_tensors(values.first, f);
    visit_tensors(values.second, f);
  }
};

template <class T>
struct TensorVisitor<std::optional<T>> {
  static void visit(auto& value, auto& f) {
    if (value) visit_tensors(*value, f);
  }
};

namespace detail {
struct RangeVisitor {
  static void visit(auto& values, auto& f) {
    for (auto& value : values) visit_tensors(value, f);
  }
};
}  // namespace detail

template <class T, class... Rest>
struct TensorVisitor<std::vector<T, Rest...>> : detail::RangeVisitor {};
/// Its elements are no objects of their own.
template <class... Rest>
struct TensorVisitor<std::vector<bool, Rest...>> {
  static void visit(auto&, auto&) {}
};
template <class T, std::size_t n>
struct TensorVisitor<std::array<T, n>> : detail::RangeVisitor {};
template <class... T>
struct TensorVisitor<std::map<T...>> : detail::RangeVisitor {};
template <class... T>
struct TensorVisitor<std::unordered_map<T...>> : detail::RangeVisitor {};

}  // namespace ddp
