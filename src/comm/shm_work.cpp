#include "comm/shm_work.hpp"

#include <exception>
#include <stdexcept>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::comm {

bool ShmWork::wait(std::chrono::milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  engine_->help([&] {
    return future_->completed() || engine_->is_over() ||
           (timeout != kNoTimeout && std::chrono::steady_clock::now() - start > timeout);
  });
  if (!future_->completed()) throw std::runtime_error("shared memory: the call has not ended");
  future_->waitAndThrow();
  return true;
}

void ShmWork::end() {
  const auto future = future_;  // its callbacks may let go of this
  tensors_.clear();
  try {
    if (!call.trouble.empty()) throw CallMismatchError({}, "shared memory", call.trouble);
    if (!call.labels.empty()) std::exchange(on_labels_, nullptr)(call.labels);
  } catch (...) {
    return future->setError(std::current_exception());
  }
  future->markCompleted();
}

}  // namespace ddp::comm
