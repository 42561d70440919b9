#pragma once
/// update_table.hpp: what update() and sum_of_squares() choose from; for them and for tests that compare the
/// instruction sets.

#include "base/instruction_set.hpp"
#include "optim/update.hpp"

namespace ddp::optim {

template <class T>
struct Loops {
  void (*sgd)(const SgdStep& step, const Range<T>& range);
  void (*adam)(const AdamStep& step, const Range<T>& range);
  double (*sum_of_squares)(const T* values, std::size_t count);
};
struct LoopTable {
  Loops<float> of_float;
  Loops<double> of_double;
};

extern const LoopTable kBaselineLoops;
extern const LoopTable kAvx2Loops;  ///< x86-64 alone, as the next
extern const LoopTable kAvx512Loops;

/// Errors: none; `set` must be there.
const LoopTable& loops_of(InstructionSet set);

}  // namespace ddp::optim
