#pragma once
/// shm_combine_oracle.hpp: the half types, and what a reduction has to give, in the plainest way.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "comm/shm/combine.hpp"

namespace ddp::comm::shm::testing {

/// A half type in its bits. Its oracle is the sorted list of its finite values.
template <int fraction_bits>
struct Half {
  std::uint16_t bits = 0;

  static double value_of(unsigned bits) {
    constexpr int kBias = (1 << (14 - fraction_bits)) - 1;
    const unsigned fraction = bits & ((1u << fraction_bits) - 1);
    const int exponent = static_cast<int>((bits & 0x7fff) >> fraction_bits);
    double value = std::ldexp(fraction, 1 - kBias - fraction_bits);
    if (exponent > kBias * 2) {
      value = fraction != 0 ? std::nan("") : std::numeric_limits<double>::infinity();
    } else if (exponent > 0) {
      value = std::ldexp(fraction + (1u << fraction_bits), exponent - kBias - fraction_bits);
    }
    return (bits & 0x8000) != 0 ? -value : value;
  }
  double value() const { return value_of(bits); }

  // The neighbour that is nearer, the even one of two as near; infinity is what would be the next number.
  static Half nearest(double value) {
    static const auto kMagnitudes = [] {
      std::vector<double> magnitudes;
      for (unsigned bits = 0; std::isfinite(value_of(bits)); ++bits) magnitudes.push_back(value_of(bits));
      magnitudes.push_back(2 * magnitudes.back() - magnitudes[magnitudes.size() - 2]);
      return magnitudes;
    }();
    const unsigned sign = std::signbit(value) ? 0x8000 : 0;
    const auto infinity = static_cast<unsigned>(kMagnitudes.size() - 1);
    if (std::isnan(value)) return {static_cast<std::uint16_t>(sign | infinity | 1u)};
    const double magnitude = std::abs(value);
    const auto above = std::lower_bound(kMagnitudes.begin(), kMagnitudes.end(), magnitude);
    if (above == kMagnitudes.end()) return {static_cast<std::uint16_t>(sign | infinity)};
    auto bits = static_cast<unsigned>(above - kMagnitudes.begin());
    if (bits > 0) {
      const double down = magnitude - kMagnitudes[bits - 1];
      const double up = *above - magnitude;
      if (down < up || (down == up && bits % 2 == 1)) --bits;
    }
    return {static_cast<std::uint16_t>(sign | bits)};
  }
};
using Bfloat16 = Half<7>;
using Float16 = Half<10>;

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Bfloat16> || std::is_same_v<T, Float16>;

template <typename T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, float>) return Type::float32;
  if constexpr (std::is_same_v<T, double>) return Type::float64;
  if constexpr (std::is_same_v<T, Bfloat16>) return Type::bfloat16;
  if constexpr (std::is_same_v<T, Float16>) return Type::float16;
  if constexpr (std::is_same_v<T, std::int8_t>) return Type::int8;
  if constexpr (std::is_same_v<T, std::uint8_t>) return Type::uint8;
  if constexpr (std::is_same_v<T, std::int16_t>) return Type::int16;
  if constexpr (std::is_same_v<T, std::int32_t>) return Type::int32;
  return Type::int64;
}

// The same bits, or two NaNs.
template <typename T>
bool same(T a, T b) {
  if constexpr (kIsHalf<T>) {
    return a.bits == b.bits || (std::isnan(a.value()) && std::isnan(b.value()));
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
  } else {
    return a == b;
  }
}

template <typename F>
F expected_float(Combine op, const std::vector<F>& values) {
  if (op == Combine::sum) return std::accumulate(values.begin() + 1, values.end(), values[0]);
  if (op == Combine::product) return std::accumulate(values.begin() + 1, values.end(), values[0], std::multiplies<F>());
  if (std::any_of(values.begin(), values.end(), [](F value) { return std::isnan(value); })) return std::nan("");
  return op == Combine::min ? *std::min_element(values.begin(), values.end())
                            : *std::max_element(values.begin(), values.end());
}

template <typename T>
T expected_integer(Combine op, const std::vector<T>& values) {
  if (op == Combine::min) return *std::min_element(values.begin(), values.end());
  if (op == Combine::max) return *std::max_element(values.begin(), values.end());
  std::uint64_t total = op == Combine::sum ? 0 : 1;  // modulo 2^64, hence modulo any smaller power
  for (const T value : values) {
    const auto wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    total = op == Combine::sum ? total + wide : total * wide;
  }
  return static_cast<T>(total);
}

// Of one element.
template <typename T>
T expected_of(Combine op, const std::vector<T>& values) {
  if constexpr (kIsHalf<T>) {
    std::vector<float> floats;
    for (const T value : values) floats.push_back(static_cast<float>(value.value()));
    return T::nearest(expected_float(op, floats));
  } else if constexpr (std::is_floating_point_v<T>) {
    return expected_float(op, values);
  } else {
    return expected_integer(op, values);
  }
}

}  // namespace ddp::comm::shm::testing
