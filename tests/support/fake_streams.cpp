#include "support/fake_streams.hpp"

#include <chrono>
#include <exception>
#include <utility>

namespace ddp::testing {
namespace {

using Clock = std::chrono::steady_clock;
// Only another rank makes a wait last: a few times what one takes to come, so that lateness does not depend on it.
constexpr std::chrono::milliseconds kPatience{10};
constexpr std::chrono::microseconds kBetweenLooks{200};

}  // namespace

FakeStreams::Position FakeStreams::add(FakeStreamKey key, Task task) {
  const std::lock_guard lock(mutex_);
  auto& stream = streams_[key];
  stream.tasks.push_back(std::move(task));
  return stream.done + stream.tasks.size();
}

void FakeStreams::add_wait(FakeStreamKey waiting, FakeStreamKey other, Position position) {
  if (waiting == other || is_done(other, position)) return;
  add(waiting, [this, other, position] { return advance(other, position); });
}

void FakeStreams::make_independent(FakeStreamKey stream) {
  const std::lock_guard lock(mutex_);
  streams_[stream].is_independent = true;
}

const FakeStreams::Stream* FakeStreams::find(FakeStreamKey key) const {
  const auto found = streams_.find(key);
  return found == streams_.end() ? nullptr : &found->second;
}

FakeStreams::Position FakeStreams::end(FakeStreamKey key) const {
  const std::lock_guard lock(mutex_);
  const auto* stream = find(key);
  return stream == nullptr ? 0 : stream->done + stream->tasks.size();
}

bool FakeStreams::is_done(FakeStreamKey key, Position position) const {
  const std::lock_guard lock(mutex_);
  const auto* stream = find(key);
  return position == 0 || (stream != nullptr && stream->done >= position);
}

bool FakeStreams::advance(FakeStreamKey key, Position position) {
  std::unique_lock lock(mutex_);
  auto& stream = streams_[key];
  while (stream.done < position && !stream.is_running) {
    stream.is_running = true;
    auto& task = stream.tasks.front();
    lock.unlock();
    bool ended = true;
    std::exception_ptr error;
    try {
      ended = task();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    Task over;  // may hold the last reference to memory, whose end adds a task
    if (ended) {
      over = std::move(task);
      stream.tasks.pop_front();
      ++stream.done;
    }
    stream.is_running = false;
    changed_.notify_all();
    lock.unlock();
    over = nullptr;
    if (error) std::rethrow_exception(error);
    lock.lock();
    if (!ended) break;
  }
  return stream.done >= position;
}

void FakeStreams::finish(FakeStreamKey key, Position position) {
  const auto begin = Clock::now();
  while (!advance(key, position)) {
    if (Clock::now() - begin > kPatience)
      for (const auto& [other, end] : ends([](auto, const auto& stream) { return stream.is_independent; }))
        advance(other, end);
    std::unique_lock lock(mutex_);
    if (streams_[key].done < position) changed_.wait_for(lock, kBetweenLooks);
  }
}

void FakeStreams::finish_device(int device) {
  for (const auto& [key, end] : ends([&](auto key, const auto&) { return key.device == device; })) finish(key, end);
}

std::map<FakeStreamKey, FakeStreams::Position> FakeStreams::ends(
    const std::function<bool(FakeStreamKey, const Stream&)>& is_meant) const {
  const std::lock_guard lock(mutex_);
  std::map<FakeStreamKey, Position> all;
  for (const auto& [key, stream] : streams_)
    if (is_meant(key, stream)) all[key] = stream.done + stream.tasks.size();
  return all;
}

}  // namespace ddp::testing
