#pragma once
/// session.hpp: this process's membership of one group: the store, the watch over the other ranks,
/// the group's health and the record of its calls. It outlives the ProcessGroup where an exception
/// or the end of the process needs it.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/device_backend.hpp"
#include "comm/flight_recorder.hpp"
#include "comm/group_table.hpp"
#include "comm/health.hpp"
#include "comm/peer_watch.hpp"
#include "comm/progress.hpp"
#include "comm/roll_call.hpp"
#include "ddp/environment.hpp"

namespace ddp::comm {

/// Threads: all members are safe.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// A world of one: no store, no sockets, no threads.
  static std::shared_ptr<Session> alone(const Environment& environment);
  /// Where the ranks meet, and what they must agree on.
  struct Rendezvous {
    std::string store_file;
    std::string backend;
    DeviceIdentity device;     ///< empty: of no device
    std::string trouble = {};  ///< see Arrival; then it ends in a ConfigError on all ranks
  };
  /// Collective. Meets the other ranks and puts a watch over them.
  static std::shared_ptr<Session> join(const Environment& environment, const Rendezvous& meeting,
                                       std::chrono::milliseconds timeout);
  /// Some of this session's ranks, of which this is one; its watch is not open yet. It fails with fail()
  /// here, and hears of deaths here too.
  std::shared_ptr<Session> part(const std::vector<int>& ranks, c10::intrusive_ptr<c10d::Store> store);
  /// The group's rank 0: opens the watch's hub and notes in `self` where it is.
  void open_hub(Arrival& self, const Environment& environment);
  /// Puts this rank under the watch whose hub `rank_0` has told of.
  void open_link(const Environment& environment, const Arrival& rank_0, std::chrono::milliseconds timeout);

  /// This rank in the world, whichever of its groups this is.
  Origin origin() const { return origin_; }
  Health& health() { return health_; }
  FlightRecorder& recorder() { return recorder_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  /// Of the group's ranks, in their order.
  const std::vector<Arrival>& arrivals() const { return arrivals_; }
  const Arrival& own_arrival() const;
  /// The group's ranks in the world, in their order. Errors name these.
  const std::vector<int>& ranks() const { return ranks_; }

  /// Runs `work` on a thread of its own and waits for its end, a breakage or the timeout; after
  /// either of the last two the thread is left to itself. `part` names the work in errors.
  /// A ddp::Error of `work` is told to the others and thrown as it is.
  void run_abandonable(std::string_view part, std::chrono::milliseconds timeout, std::function<void()> work);

  /// Breaks the group and tells the others; the first breakage wins and is the one thrown.
  [[noreturn]] void break_and_raise(Breakage breakage, std::string_view part);
  /// This rank has failed: breaks the group here and everywhere.
  void fail(std::string_view text) noexcept;
  /// Every rank's answer, in the group's order; empty for one that gives none in time. None where it is another
  /// rank's turn.
  std::optional<std::vector<std::string>> ask(const Question& question, std::chrono::milliseconds limit,
                                              const std::vector<bool>& held = {});
  /// What each rank did last; empty for one that does not reply within a second.
  std::vector<std::string> statuses();
  /// The same as text, one line a rank, "no answer" for one that does not reply.
  std::string every_status();

  /// After so long in one call the watchdog says whom it waits for; zero: never.
  void set_warn_after(std::chrono::milliseconds time) { warn_after_ = time; }
  std::chrono::milliseconds warn_after() const { return warn_after_; }

  /// Waits for a call as Health::wait does. A long wait is told to rank 0's watch, which knows when all
  /// ranks wait in calls that never meet.
  template <class Done>
  void wait(std::uint64_t number, std::chrono::steady_clock::time_point deadline, Done done) {
    const LongWait wait(*this);
    for (bool is_over = false; !is_over;) {
      const auto now = std::chrono::steady_clock::now();
      const auto until = std::min(deadline, now + kTellAfter);
      health_.wait(number, until, [&] { return is_over = done(); });
      if (is_over || until == deadline || health_.obstacle(number)) return;
      tell_wait();
    }
  }

  /// The same for a call on the backend, at whose work this thread helps.
  template <class Done>
  void wait_working(const Call& call, std::chrono::steady_clock::time_point deadline, Done done) {
    const auto progress = call.peer < 0 ? current_progress() : nullptr;  // messages have threads of their own
    if (!progress) return wait(call.number, deadline, done);
    const LongWait wait(*this);
    auto tell_at = std::chrono::steady_clock::now() + kTellAfter;
    progress->help([&] {
      if (health_.look(done) || health_.obstacle(call.number)) return true;
      const auto now = std::chrono::steady_clock::now();
      if (now >= tell_at) {
        tell_wait();
        tell_at = now + kTellAfter;
      }
      return now >= deadline;
    });
  }
  /// The same for `limit`, whatever the obstacles.
  template <class Done>
  void wait_despite_obstacles(std::chrono::milliseconds limit, Done done) {
    const auto progress = current_progress();
    if (!progress) return health_.wait_despite_obstacles(limit, done);
    const auto deadline = std::chrono::steady_clock::now() + limit;
    progress->help([&] { return std::chrono::steady_clock::now() >= deadline || health_.look(done); });
  }

  /// Of a backend that needs somebody to do its work; null for others, and once it has gone.
  void set_progress(std::shared_ptr<Progress> progress);
  /// The calls made so far end from now on although nobody waits for them.
  void go_on_alone() noexcept;

  /// The backend's name, once all ranks are connected; empty before.
  void set_backend(std::string name);
  std::string backend() const;
  /// What travels in the wrapped model's calls from the next one on.
  void name_buckets(std::vector<BucketNames> buckets) {
    record_->legend().add({recorder_.entered() + 1, std::move(buckets)});
  }

  /// While one lives that was made before the group was closed, as its thread finds out after that, its backend lives.
  class Calling {
   public:
    explicit Calling(Session& session) : session_(session) { session_.call_started(); }
    ~Calling() {
      session_.call_ended();
      if (session_.waits_idle_) session_.health_.update([] {});
    }
    Calling(const Calling&) = delete;
    Calling& operator=(const Calling&) = delete;

   private:
    Session& session_;
  };
  /// Calls that the backend has not ended yet.
  void call_started() { ++pending_; }
  void call_ended() { --pending_; }  // inside Health::update(), so that wait_idle() is woken
  bool is_idle() const { return pending_ == 0; }
  /// Waits until no call is pending or the group is broken, at most `limit`.
  void wait_idle(std::chrono::milliseconds limit);

  /// Says goodbye; bounded by a second. Only the first call does something.
  void leave() noexcept;
  bool has_left() const { return left_; }
  /// Rank 0: waits for the others' goodbyes, for they need what rank 0 serves. True when all have left.
  bool wait_for_others(std::chrono::milliseconds limit) noexcept;
  /// Rank 0: has waited long enough; the others go on without it.
  void give_up_others() { others_given_up_ = true; }

  /// The group was destroyed by an exception whose text is not known yet.
  void orphan() { orphaned_ = true; }
  bool is_orphaned() const { return orphaned_; }
  /// Its calls can still end in order.
  bool is_sound() { return !health_.breakage() && !is_orphaned(); }

 private:
  // Not shorter, for a healthy job is to be silent: ranks are apart by a batch's time. Not longer, for it
  // is most of the time after which a mismatch is known.
  static constexpr std::chrono::seconds kTellAfter{1};

  Session(Origin origin, std::vector<int> ranks);
  std::shared_ptr<Progress> current_progress() const;
  void on_failure(Failure failure);
  std::vector<std::shared_ptr<Session>> parts();
  void throw_if_broken(std::string_view part) const;
  void tell_wait();
  /// What was noted of a wait is over with it.
  struct LongWait {
    explicit LongWait(Session& waited) : session(waited) {}
    ~LongWait() { session.recorder_.end_wait(); }
    LongWait(const LongWait&) = delete;
    LongWait& operator=(const LongWait&) = delete;
    Session& session;
  };
  void rethrow_if_ours(const std::exception_ptr& error);

  const Origin origin_;
  const std::vector<int> ranks_;
  const ListedGroup record_;
  FlightRecorder& recorder_;
  Health health_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<Arrival> arrivals_;
  std::mutex parts_mutex_;
  std::vector<std::weak_ptr<Session>> parts_;
  mutable std::mutex backend_mutex_;
  std::string backend_;
  std::shared_ptr<Progress> progress_;
  std::atomic<std::chrono::milliseconds> warn_after_{std::chrono::milliseconds(0)};
  std::atomic<int> pending_{0};
  std::atomic<bool> waits_idle_{false};  // somebody does, and is to be woken
  std::atomic<bool> reported_{false};
  std::atomic<bool> left_{false};
  std::atomic<bool> orphaned_{false};
  std::atomic<bool> others_given_up_{false};
  std::unique_ptr<WatchHub> hub_;
  std::unique_ptr<WatchLink> link_;  // last: its callbacks use what stands above
};

}  // namespace ddp::comm
