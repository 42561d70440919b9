#include "optim/update_loops.hpp"

namespace ddp::optim {

constinit const LoopTable kAvx2Loops = kLoops;

}  // namespace ddp::optim
