#include "ddp/seed.hpp"

#include <ATen/Context.h>

#include "ddp/process_group.hpp"

namespace ddp {

void seed_all(std::uint64_t seed, const ProcessGroup& group) {
  at::manual_seed(seed + static_cast<std::uint64_t>(group.rank()));
}

}  // namespace ddp
