#include "comm/shm/combine.hpp"

#include <cstring>

#include "comm/shm/combine_kernels.hpp"

namespace ddp::comm::shm {
namespace {

const KernelTable& table_of(InstructionSet set) {
#ifdef DDP_SHM_WITH_AVX
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

InstructionSet best_instruction_set() {
  static const InstructionSet best = has(InstructionSet::avx512) ? InstructionSet::avx512
                                     : has(InstructionSet::avx2) ? InstructionSet::avx2
                                                                 : InstructionSet::baseline;
  return best;
}

}  // namespace

std::size_t bytes_of(Type type) {
  static constexpr std::size_t kBytes[] = {4, 8, 2, 2, 1, 1, 2, 4, 8};
  static_assert(sizeof(kBytes) / sizeof(kBytes[0]) == kTypeCount);
  return kBytes[static_cast<std::size_t>(type)];
}

bool has(InstructionSet set) {
#ifdef DDP_SHM_WITH_AVX
  if (set == InstructionSet::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (set == InstructionSet::avx512) {
    return has(InstructionSet::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
#endif
  return set == InstructionSet::baseline;
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

std::string_view instruction_set() {
  switch (best_instruction_set()) {
    case InstructionSet::avx512:
      return "AVX-512";
    case InstructionSet::avx2:
      return "AVX2";
    case InstructionSet::baseline:
      break;
  }
  return "baseline";
}

}  // namespace ddp::comm::shm
