#include "comm/shm/combine_loops.hpp"

namespace ddp::comm::shm {

constinit const KernelTable kAvx2Kernels = kKernels;

}  // namespace ddp::comm::shm
