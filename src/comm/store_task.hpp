#pragma once
/// store_task.hpp: work on the store by a thread of its own, for a store may keep whoever asks it; then the thread is
/// left to itself.

#include <chrono>
#include <exception>
#include <memory>
#include <thread>

#include "comm/process_group_impl.hpp"
#include "comm/session.hpp"
#include "comm/text_of.hpp"

namespace ddp::comm {

/// All of it, and of what derives from it, under the health's lock.
struct StoreTask {
  bool is_over = false;
  bool is_abandoned = false;
  std::exception_ptr error;
};

/// `work(*task)` may change the task in Health::update(), and comes to an end once it is abandoned.
template <class Task, class Work>
void start_on_store(const std::shared_ptr<Session>& session, const std::shared_ptr<Task>& task, Work work) {
  std::thread([session, task, work = std::move(work)] {
    std::exception_ptr error;
    try {
      work(*task);
    } catch (...) {
      error = std::current_exception();
    }
    session->health().update([&] {
      task->error = error;
      task->is_over = true;
    });
  }).detach();
}

/// Waits for the task's end and gives it up. What it is then; not over: the time has passed.
/// Errors: that of the group, or of a store that is gone.
template <class Task>
Task wait_for_task(Session& session, Task& task, const Call& call, std::chrono::milliseconds limit) {
  Task seen;
  session.wait(call.number, deadline_in(limit), [&] {
    seen = task;
    return seen.is_over;
  });
  session.health().update([&] { task.is_abandoned = true; });
  if (seen.is_over && !seen.error) return seen;
  if (const auto obstacle = session.health().obstacle(call.number)) session.break_and_raise(*obstacle, call.name());
  if (seen.error)
    session.break_and_raise({Breakage::Kind::peer_unknown, -1, "lost the store: " + text_of(seen.error)}, call.name());
  return seen;
}

/// Between two looks into the store: longer and longer.
class StorePause {
 public:
  explicit StorePause(std::chrono::milliseconds longest) : longest_(longest) {}
  void sleep() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(next_ * 2, longest_);
  }

 private:
  std::chrono::milliseconds next_{1}, longest_;
};

}  // namespace ddp::comm
