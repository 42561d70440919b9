#pragma once
/// combine_loops.hpp: combine()'s loops, written for the compiler to vectorise.
///
/// Included by one source file per instruction set, which is compiled with that set's flags; see combine_formats.hpp
/// for what must not stand here.

#include "comm/shm/combine_formats.hpp"
#include "comm/shm/combine_kernels.hpp"

namespace ddp::comm::shm {
namespace {

/// Elements of a block that is combined in the stack and then copied to the outputs: 16 KiB in the widest type, so
/// that it stays in the first cache. Fewer would make the calls per block show.
constexpr std::size_t kBlock = 2048;
static_assert(kBlock * sizeof(double) <= 16 * 1024);

template <typename Stored>
const Stored* input(const CombineJob& job, std::size_t k, std::size_t start = 0) {
  return reinterpret_cast<const Stored*>(job.inputs[k]) + start;
}
template <typename Stored>
Stored* output(const CombineJob& job, std::size_t j, std::size_t start = 0) {
  return reinterpret_cast<Stored*>(job.outputs[j]) + start;
}

// The usual case, two ranks: one pass. ivdep: an output that is an input is written where it has just been read, so
// no iteration depends on another one.
template <typename Format, typename Op>
void two_to_one(const CombineJob& job) {
  using Stored = typename Format::Stored;
  const auto* a = input<Stored>(job, 0);
  const auto* b = input<Stored>(job, 1);
  auto* to = output<Stored>(job, 0);
  const std::size_t count = job.count;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = Format::narrow(Op::template of<Format>(Format::widen(a[i]), Format::widen(b[i])));
  }
}

template <typename Format, typename Op>
void two_to_two(const CombineJob& job) {
  using Stored = typename Format::Stored;
  const auto* a = input<Stored>(job, 0);
  const auto* b = input<Stored>(job, 1);
  auto* first = output<Stored>(job, 0);
  auto* second = output<Stored>(job, 1);
  const std::size_t count = job.count;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const Stored value = Format::narrow(Op::template of<Format>(Format::widen(a[i]), Format::widen(b[i])));
    first[i] = value;
    second[i] = value;
  }
}

/// The loops over one block, of `count` elements in `total`.
template <typename Format, typename Op>
struct Block {
  using Stored = typename Format::Stored;
  using Wide = typename Format::Wide;

  static void begin(Wide* __restrict total, const Stored* a, const Stored* b, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      total[i] = Op::template of<Format>(Format::widen(a[i]), Format::widen(b[i]));
    }
  }
  static void go_on(Wide* __restrict total, const Stored* a, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) total[i] = Op::template of<Format>(total[i], Format::widen(a[i]));
  }
  static void go_on(Wide* __restrict total, const Stored* a, const Stored* b, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const Wide next = Op::template of<Format>(total[i], Format::widen(a[i]));
      total[i] = Op::template of<Format>(next, Format::widen(b[i]));
    }
  }
  static void end(const Wide* __restrict total, Stored* __restrict to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = Format::narrow(total[i]);
  }
};

/// The first output's block to the others.
template <typename Stored>
void copy_block(const CombineJob& job, std::size_t start, std::size_t count) {
  const Stored* from = output<Stored>(job, 0, start);
  for (std::size_t j = 1; j < job.output_count; ++j) {
    __builtin_memcpy(output<Stored>(job, j, start), from, count * sizeof(Stored));
  }
}

template <typename Format, typename Op>
void many(const CombineJob& job) {
  using Stored = typename Format::Stored;
  using Loops = Block<Format, Op>;
  alignas(64) typename Format::Wide total[kBlock];
  for (std::size_t start = 0; start < job.count; start += kBlock) {
    const std::size_t count = job.count - start < kBlock ? job.count - start : kBlock;
    Loops::begin(total, input<Stored>(job, 0, start), input<Stored>(job, 1, start), count);
    std::size_t k = 2;
    for (; k + 1 < job.input_count; k += 2) {
      Loops::go_on(total, input<Stored>(job, k, start), input<Stored>(job, k + 1, start), count);
    }
    if (k < job.input_count) Loops::go_on(total, input<Stored>(job, k, start), count);
    Loops::end(total, output<Stored>(job, 0, start), count);
    copy_block<Stored>(job, start, count);
  }
}

/// Any number of inputs of a type whose conversions are not left to the compiler.
template <typename Op>
void many_float16(const CombineJob& job) {
  using Stored = Float16::Stored;
  alignas(64) float total[kBlock];
  alignas(64) float next[kBlock];
  for (std::size_t start = 0; start < job.count; start += kBlock) {
    const std::size_t count = job.count - start < kBlock ? job.count - start : kBlock;
    Float16::widen(input<Stored>(job, 0, start), total, count);
    for (std::size_t k = 1; k < job.input_count; ++k) {
      Float16::widen(input<Stored>(job, k, start), next, count);
      Block<Floating<float>, Op>::go_on(total, next, count);
    }
    Float16::narrow(total, output<Stored>(job, 0, start), count);
    copy_block<Stored>(job, start, count);
  }
}

template <typename Format, typename Op>
void kernel(const CombineJob& job) {
  if (job.input_count == 2 && job.output_count == 2) return two_to_two<Format, Op>(job);
  if (job.input_count == 2 && job.output_count == 1) return two_to_one<Format, Op>(job);
  many<Format, Op>(job);
}

template <typename Format>
constexpr KernelRow row() {
  return {{kernel<Format, Sum>, kernel<Format, Min>, kernel<Format, Max>, kernel<Format, Product>}};
}
template <>
constexpr KernelRow row<Float16>() {
  return {{many_float16<Sum>, many_float16<Min>, many_float16<Max>, many_float16<Product>}};
}

constexpr KernelTable kKernels{{
    row<Floating<float>>(),
    row<Floating<double>>(),
    row<Bfloat16>(),
    row<Float16>(),
    row<Integer<std::int8_t, std::uint32_t>>(),
    row<Integer<std::uint8_t, std::uint32_t>>(),
    row<Integer<std::int16_t, std::uint32_t>>(),
    row<Integer<std::int32_t, std::uint32_t>>(),
    row<Integer<std::int64_t, std::uint64_t>>(),
}};
static_assert(static_cast<std::size_t>(Type::int64) + 1 == kTypeCount);
static_assert(static_cast<std::size_t>(Combine::product) + 1 == kCombineCount);

}  // namespace
}  // namespace ddp::comm::shm
