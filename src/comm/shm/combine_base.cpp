#include "comm/shm/combine_loops.hpp"

namespace ddp::comm::shm {

constinit const KernelTable kBaselineKernels = kKernels;

}  // namespace ddp::comm::shm
