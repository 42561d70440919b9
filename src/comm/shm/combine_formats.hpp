#pragma once
/// combine_formats.hpp: how each type is read, calculated with and written, for combine_loops.hpp.
///
/// Compiled once per instruction set: everything is in an unnamed namespace and nothing calls an inline function of
/// the standard library, for the linker keeps one copy of such a function, maybe one that the processor cannot run.

#include <cstddef>
#include <cstdint>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace ddp::comm::shm {
namespace {

/// `Stored` is what lies in memory, `Wide` what is calculated with.
template <typename T>
struct Floating {
  using Stored = T;
  using Wide = T;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) { return value; }
  static Wide add(Wide a, Wide b) { return a + b; }
  static Wide multiply(Wide a, Wide b) { return a * b; }
  static bool is_nan(Wide value) { return __builtin_isnan(value); }
};

/// Calculates in the unsigned type `U`, which is at least as wide as `unsigned int`: a narrower one would be promoted
/// to int, whose overflow is undefined.
template <typename T, typename U>
struct Integer {
  static_assert(sizeof(U) >= sizeof(T) && sizeof(U) >= sizeof(unsigned int));
  using Stored = T;
  using Wide = T;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) { return value; }
  static Wide add(Wide a, Wide b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); }
  static Wide multiply(Wide a, Wide b) { return static_cast<T>(static_cast<U>(a) * static_cast<U>(b)); }
  static bool is_nan(Wide) { return false; }
};

struct Bfloat16 : Floating<float> {
  using Stored = std::uint16_t;
  static float widen(std::uint16_t bits) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }
  /// For what is calculated from numbers of this type: a NaN among them has zeros below bit 16, so that rounding
  /// leaves it one. Of another NaN it might make a zero.
  static std::uint16_t narrow(float value) {
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

/// IEEE's binary16. The portable conversions give the bits of the F16C instructions, but for a NaN's.
struct Float16 : Floating<float> {
  using Stored = std::uint16_t;
  static float widen(std::uint16_t bits);
  static std::uint16_t narrow(float value);
  static void widen(const std::uint16_t* from, float* to, std::size_t count);
  static void narrow(const float* from, std::uint16_t* to, std::size_t count);
};

inline float Float16::widen(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t magnitude = bits & 0x7fff;
  std::uint32_t wide = (magnitude << 13) + 0x38000000;  // from the exponent's bias of 15 to the one of 127
  if (magnitude < 0x0400) {
    wide = __builtin_bit_cast(std::uint32_t, static_cast<float>(magnitude) * 0x1p-24f);
  } else if (magnitude >= 0x7c00) {
    wide += 0x38000000;  // infinity or NaN: the largest exponent of either format
  }
  return __builtin_bit_cast(float, sign | wide);
}

/// `bits` without its lowest `shift` bits, rounded to the nearest even.
inline std::uint32_t shifted_right(std::uint32_t bits, std::uint32_t shift) {
  const std::uint32_t below_half = (1u << (shift - 1)) - 1;
  return (bits + below_half + ((bits >> shift) & 1)) >> shift;
}

inline std::uint16_t Float16::narrow(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000) {
    half = 0x7e00;
  } else if (magnitude >= 0x47800000) {  // 2^16 and more; what lies below and rounds up to it carries into infinity
    half = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // 2^-14, the smallest normal number
    half = shifted_right(magnitude - 0x38000000, 13);
  } else if (magnitude >= 0x33000000) {  // 2^-25, half of the smallest subnormal one
    half = shifted_right((magnitude & 0x007fffff) | 0x00800000, 126 - (magnitude >> 23));
  }
  return static_cast<std::uint16_t>(sign | half);
}

inline void Float16::widen(const std::uint16_t* from, float* to, std::size_t count) {
  std::size_t i = 0;
#ifdef __F16C__
  for (; count - i >= 8; i += 8) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(source)));
  }
#endif
  for (; i < count; ++i) to[i] = widen(from[i]);
}

inline void Float16::narrow(const float* from, std::uint16_t* to, std::size_t count) {
  std::size_t i = 0;
#ifdef __F16C__
  for (; count - i >= 8; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
#endif
  for (; i < count; ++i) to[i] = narrow(from[i]);
}

struct Sum {
  template <typename Format, typename Wide>
  static Wide of(Wide a, Wide b) {
    return Format::add(a, b);
  }
};
struct Product {
  template <typename Format, typename Wide>
  static Wide of(Wide a, Wide b) {
    return Format::multiply(a, b);
  }
};
// `|` and not `||`: a loop without branches is vectorised.
struct Min {
  template <typename Format, typename Wide>
  static Wide of(Wide a, Wide b) {
    return static_cast<bool>(static_cast<int>(b < a) | static_cast<int>(Format::is_nan(b))) ? b : a;
  }
};
struct Max {
  template <typename Format, typename Wide>
  static Wide of(Wide a, Wide b) {
    return static_cast<bool>(static_cast<int>(b > a) | static_cast<int>(Format::is_nan(b))) ? b : a;
  }
};

}  // namespace
}  // namespace ddp::comm::shm
