#pragma once
/// work.hpp: a collective under way.

#include <chrono>
#include <memory>
#include <optional>

namespace ddp {

/// What an `_async` collective returns. Copies stand for the same collective.
///
/// Tensors: must not be touched between the call and the return of wait().
/// Threads: wait() may be called from any thread, and more than once.
/// Lifetime: may outlive the group; a Work that nobody waits for still runs to its end.
class Work {
 public:
  struct State;

  /// A collective that is complete already.
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Returns when the result is in the tensors (on CUDA: when the current stream will see it).
  /// Waits at most for the timeout of the call, counted from the call's start.
  /// Errors: PeerLostError when another rank failed, died or left, within seconds of its doing so;
  /// TimeoutError with what every rank did last; CommError else. The group is broken after each.
  void wait() const;
  /// The same with a limit of its own, counted from now. After TimeoutError the group is broken.
  void wait(std::chrono::milliseconds timeout) const;

  bool is_completed() const;
  /// When the backend had ended it, on the steady clock; none before, and for a Work that was complete from the start.
  std::optional<std::chrono::steady_clock::time_point> completed_at() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ddp
