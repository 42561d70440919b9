#include "ddp/join.hpp"

#include <stdexcept>
#include <utility>

#include "ddp/data_parallel_core.hpp"

namespace ddp {

Join::Join(DataParallelCore& core, const JoinOptions& options) : core_(&core), options_(options) {
  core_->set_joining(true);
}

Join::Join(Join&& other) noexcept : core_(std::exchange(other.core_, nullptr)), options_(other.options_) {}

Join::~Join() {
  if (core_ != nullptr) core_->set_joining(false);
}

void Join::finish(const std::function<void()>& step) {
  if (core_ == nullptr) throw std::logic_error("ddp: Join::finish() may be called once");
  auto last_in_loop = core_->lowest_active();
  while (core_->shadow_step(options_.divide_by_initial_world_size)) {
    if (step) step();
    last_in_loop = core_->lowest_active();
  }
  if (!step) core_->copy_from(last_in_loop);
  std::exchange(core_, nullptr)->set_joining(false);
}

}  // namespace ddp
