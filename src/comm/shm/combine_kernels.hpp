#pragma once
/// combine_kernels.hpp: what combine() chooses from; for it and for tests that compare the instruction sets.

#include "base/instruction_set.hpp"
#include "comm/shm/combine.hpp"

namespace ddp::comm::shm {

/// combine()'s arguments, which are described there.
struct CombineJob {
  const std::byte* const* inputs;
  std::size_t input_count;
  std::byte* const* outputs;
  std::size_t output_count;
  std::size_t count;
};

/// Takes a job of two or more inputs.
using Kernel = void (*)(const CombineJob& job);

struct KernelRow {
  Kernel by_combine[kCombineCount];
};
struct KernelTable {
  KernelRow by_type[kTypeCount];
};

extern const KernelTable kBaselineKernels;
extern const KernelTable kAvx2Kernels;  ///< x86-64 alone, as the next
extern const KernelTable kAvx512Kernels;

/// combine() with an instruction set that is there.
void combine_with(InstructionSet set, Type type, Combine op, const CombineJob& job);

}  // namespace ddp::comm::shm
