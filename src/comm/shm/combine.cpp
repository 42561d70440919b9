#include "comm/shm/combine.hpp"

#include <cstring>

#include "comm/shm/combine_kernels.hpp"

namespace ddp::comm::shm {
namespace {

const KernelTable& table_of(InstructionSet set) {
#ifdef DDP_WITH_AVX
  if (set == InstructionSet::avx512) return kAvx512Kernels;
  if (set == InstructionSet::avx2) return kAvx2Kernels;
#endif
  static_cast<void>(set);
  return kBaselineKernels;
}

void copy_to_outputs(const CombineJob& job, std::size_t bytes) {
  for (std::size_t j = 0; j < job.output_count; ++j) {
    if (job.outputs[j] != job.inputs[0]) std::memcpy(job.outputs[j], job.inputs[0], bytes);
  }
}

}  // namespace

std::size_t bytes_of(Type type) {
  static constexpr std::size_t kBytes[] = {4, 8, 2, 2, 1, 1, 2, 4, 8};
  static_assert(sizeof(kBytes) / sizeof(kBytes[0]) == kTypeCount);
  return kBytes[static_cast<std::size_t>(type)];
}

void combine_with(InstructionSet set, Type type, Combine op, const CombineJob& job) {
  if (job.count == 0) return;
  if (job.input_count == 1) return copy_to_outputs(job, job.count * bytes_of(type));
  table_of(set).by_type[static_cast<std::size_t>(type)].by_combine[static_cast<std::size_t>(op)](job);
}

void combine(Type type, Combine op, const std::byte* const* inputs, std::size_t input_count, std::byte* const* outputs,
             std::size_t output_count, std::size_t count) {
  combine_with(best_instruction_set(), type, op, {inputs, input_count, outputs, output_count, count});
}

}  // namespace ddp::comm::shm
