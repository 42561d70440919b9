#include "optim/update.hpp"

#include "optim/update_table.hpp"

namespace ddp::optim {
namespace {

const LoopTable& best_loops() {
  static const LoopTable& best = loops_of(best_instruction_set());
  return best;
}

}  // namespace

const LoopTable& loops_of(InstructionSet set) {
#ifdef DDP_WITH_AVX
  if (set == InstructionSet::avx512) return kAvx512Loops;
  if (set == InstructionSet::avx2) return kAvx2Loops;
#endif
  static_cast<void>(set);
  return kBaselineLoops;
}

void update(const SgdStep& step, const Range<float>& range) { best_loops().of_float.sgd(step, range); }
void update(const SgdStep& step, const Range<double>& range) { best_loops().of_double.sgd(step, range); }
void update(const AdamStep& step, const Range<float>& range) { best_loops().of_float.adam(step, range); }
void update(const AdamStep& step, const Range<double>& range) { best_loops().of_double.adam(step, range); }

double sum_of_squares(const float* values, std::size_t count) {
  return best_loops().of_float.sum_of_squares(values, count);
}
double sum_of_squares(const double* values, std::size_t count) {
  return best_loops().of_double.sum_of_squares(values, count);
}

}  // namespace ddp::optim
