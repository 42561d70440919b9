#include "comm/call_line.hpp"

#include <exception>
#include <utility>

#include "comm/device_watch.hpp"

namespace ddp::comm {

void CallLine::submit(std::shared_ptr<Work::State> state, std::vector<Stage> stages, EndOnDevice end) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(state), std::move(stages), std::move(end)});
    if (is_advancing_.exchange(true)) return;
  }
  advance();
}

void CallLine::follow(std::shared_ptr<Work::State> state, c10d::Work& pending) {
  pending.getFuture()->addCallback([state = std::move(state)](c10::ivalue::Future& future) {
    state->complete(future.hasError() ? future.exception_ptr() : nullptr);
  });
}

void CallLine::advance() {
  for (;;) {
    Entry entry;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        is_advancing_ = false;
        return;
      }
      entry = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (begin_stages(entry)) return;
  }
}

bool CallLine::begin_stages(Entry& entry) {
  const auto state = entry.state;
  try {
    while (entry.next < entry.stages.size()) {
      const auto pending = entry.stages[entry.next++]();
      const bool is_last = entry.next == entry.stages.size();
      if (!pending) continue;
      if (is_last) {
        if (entry.end.watch)
          entry.end.watch->follow(state, pending, entry.end);
        else
          follow(state, *pending);
        return false;
      }
      auto rest = std::make_shared<Entry>(std::move(entry));
      pending->getFuture()->addCallback([self = shared_from_this(), rest](c10::ivalue::Future& future) {
        if (future.hasError()) {
          rest->state->complete(future.exception_ptr());
        } else if (self->begin_stages(*rest)) {
          return;
        }
        self->advance();
      });
      return true;
    }
    state->complete(nullptr);
  } catch (const std::exception&) {
    state->complete(std::current_exception());
  }
  return false;
}

}  // namespace ddp::comm
