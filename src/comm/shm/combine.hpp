#pragma once
/// combine.hpp: the arithmetic of a reduction, over plain memory.
///
/// Floats: a NaN in any input gives a NaN (its sign and payload are unspecified), for min and max too; of equal
/// values (-0 and +0) these take the first input's. Half types are combined in float over all inputs and rounded
/// once, to the nearest even. Integers wrap.
/// Threads: any number at a time, on ranges that do not overlap.

#include <cstddef>
#include <cstdint>

namespace ddp::comm::shm {

enum class Type : std::uint8_t { float32, float64, bfloat16, float16, int8, uint8, int16, int32, int64 };
inline constexpr std::size_t kTypeCount = 9;

enum class Combine : std::uint8_t { sum, min, max, product };
inline constexpr std::size_t kCombineCount = 4;

std::size_t bytes_of(Type type);

/// outputs[j][i] = inputs[0][i] op inputs[1][i] op ... op inputs[input_count - 1][i] for i < count, always in the
/// order of the inputs, so the bits depend neither on how a range is cut nor on the processor's instruction set.
/// At least one input and one output, each aligned as its type. An output may be exactly one of the inputs;
/// otherwise ranges do not overlap.
void combine(Type type, Combine op, const std::byte* const* inputs, std::size_t input_count, std::byte* const* outputs,
             std::size_t output_count, std::size_t count);

}  // namespace ddp::comm::shm
