#pragma once
/// fake_streams.hpp: queues of work in this process that run as late as allowed.

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

namespace ddp::testing {

struct FakeStreamKey {
  int device;
  std::int64_t id;
  auto operator<=>(const FakeStreamKey&) const = default;
};

/// Nothing runs before somebody waits for it; then it runs in the thread that waits, after all that it had to wait for.
/// Threads: all members are safe; tasks run without a lock.
class FakeStreams {
 public:
  /// How many tasks of a stream come before: what an event remembers.
  using Position = std::uint64_t;
  /// Called again, later, as long as it returns false. Never waits for another stream's task or another rank.
  using Task = std::function<bool()>;

  /// The position behind it.
  Position add(FakeStreamKey stream, Task task);
  /// Puts a wait for all that comes before `position` of `other` into `waiting`.
  void add_wait(FakeStreamKey waiting, FakeStreamKey other, Position position);

  /// For a stream whose tasks are ended by other ranks: one that waits for one of them may keep all from another.
  void make_independent(FakeStreamKey stream);

  Position end(FakeStreamKey stream) const;
  bool is_done(FakeStreamKey stream, Position position) const;

  /// Runs what comes before `position` as far as that is possible now; true once it has all run.
  bool advance(FakeStreamKey stream, Position position);
  /// Waits until it has. What takes long makes the independent streams go on, as a device would.
  void finish(FakeStreamKey stream, Position position);
  void finish_device(int device);

 private:
  struct Stream {
    std::deque<Task> tasks;
    Position done = 0;
    bool is_running = false;
    bool is_independent = false;
  };
  const Stream* find(FakeStreamKey stream) const;
  std::map<FakeStreamKey, Position> ends(const std::function<bool(FakeStreamKey, const Stream&)>& is_meant) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<FakeStreamKey, Stream> streams_;
};

}  // namespace ddp::testing
