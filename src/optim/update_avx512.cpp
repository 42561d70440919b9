#include "optim/update_loops.hpp"

namespace ddp::optim {

constinit const LoopTable kAvx512Loops = kLoops;

}  // namespace ddp::optim
