#pragma once
/// instruction_set.hpp: for which vector instructions there are loops, and which of them this processor has.
///
/// Such loops are compiled once for each set, by ddp_vector_loops() in cmake/targets.cmake, and chosen at run time.

#include <array>
#include <cstdint>
#include <string_view>

namespace ddp {

enum class InstructionSet : std::uint32_t { baseline, avx2, avx512 };
inline constexpr std::array kInstructionSets{InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512};

/// Whether this processor has it and the library was built with it. AVX2 here means F16C, too; AVX-512 its F, BW, VL
/// and DQ.
bool has(InstructionSet set);
/// The widest that is there.
InstructionSet best_instruction_set();
/// "AVX-512", "AVX2" or "baseline".
std::string_view name_of(InstructionSet set);

}  // namespace ddp
