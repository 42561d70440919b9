#include "comm/shm_work.hpp"

#include <stdexcept>

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
  if (call.trouble.empty())
    future->markCompleted();
  else
    future->setError(std::make_exception_ptr(CallMismatchError({}, "shared memory", call.trouble)));
}

}  // namespace ddp::comm
