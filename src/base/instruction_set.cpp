#include "base/instruction_set.hpp"

namespace ddp {

bool has(InstructionSet set) {
#ifdef DDP_WITH_AVX
  if (set == InstructionSet::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (set == InstructionSet::avx512) {
    return has(InstructionSet::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
#endif
  return set == InstructionSet::baseline;
}

InstructionSet best_instruction_set() {
  static const InstructionSet best = has(InstructionSet::avx512) ? InstructionSet::avx512
                                     : has(InstructionSet::avx2) ? InstructionSet::avx2
                                                                 : InstructionSet::baseline;
  return best;
}

std::string_view name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx512:
      return "AVX-512";
    case InstructionSet::avx2:
      return "AVX2";
    case InstructionSet::baseline:
      break;
  }
  return "baseline";
}

}  // namespace ddp
