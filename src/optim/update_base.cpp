#include "optim/update_loops.hpp"

namespace ddp::optim {

constinit const LoopTable kBaselineLoops = kLoops;

}  // namespace ddp::optim
