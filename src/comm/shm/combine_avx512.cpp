#include "comm/shm/combine_loops.hpp"

namespace ddp::comm::shm {

constinit const KernelTable kAvx512Kernels = kKernels;

}  // namespace ddp::comm::shm
