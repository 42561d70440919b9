#pragma once
/// shm_engine.hpp: a group's calls over shared memory, in their order. Whoever waits for one does the work; a thread
/// of the engine's own does where nobody waits.

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/progress.hpp"
#include "comm/shm/mail.hpp"
#include "comm/shm/memory.hpp"
#include "comm/shm/transfers.hpp"
#include "comm/shm_work.hpp"

namespace ddp::comm {

/// Threads: all members are safe. Lifetime: end() before the last owner lets go of it.
class ShmEngine final : public Progress, public std::enable_shared_from_this<ShmEngine> {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using OnLabels = ShmWork::OnLabels;
  using Time = std::chrono::steady_clock::time_point;

  /// `is_hopeless`: no call of the group can end any more.
  ShmEngine(std::shared_ptr<shm::Memory> memory, int rank, std::function<bool()> is_hopeless);

  /// Collective. `tensors` keep the call's memory. With the labels of all ranks, where the call wants them or where
  /// they differ, `on_labels` is run; what it throws is how the call ends.
  WorkPtr submit(shm::Call call, std::vector<at::Tensor> tensors, c10d::OpType operation, OnLabels on_labels = {});
  /// Collective. For a caller that waits: makes the call, alone and with the engine's work in this thread's hands,
  /// which must call run_entered(). False: others are under way, and nothing was done.
  bool enter_at_once(shm::Call& call);
  /// Null where the call has ended, as it tells itself; else its work, for it cannot end at once. `tensor` is the
  /// call's, `deadline` for one that is in its middle.
  WorkPtr run_entered(shm::Call& call, const at::Tensor& tensor, Time deadline,
                      const std::function<OnLabels()>& on_labels);
  void help(const std::function<bool()>& is_enough) override;
  void go_on_alone() noexcept override;
  /// Ends the engine's thread.
  void end() noexcept;

  const std::shared_ptr<shm::Memory>& shared_memory() const { return memory_; }
  shm::Mail& mail() { return mail_; }
  bool is_over() const override { return is_ending_ || is_hopeless_(); }

 private:
  struct Driven {  // what a thread that drives lets go of, also where its condition throws
    ShmEngine& engine;
    ~Driven() { engine.let_go(); }
  };
  void enter_those_with_room();
  bool run_until(shm::Call& call, Time deadline);
  bool run_front(const std::function<bool()>& stop);
  bool leaves_to_the_watch(const std::function<bool()>& stop);
  bool can_go_on();
  void make_room();
  bool take_over();
  void let_go();
  void run_worker();

  const std::shared_ptr<shm::Memory> memory_;
  const std::function<bool()> is_hopeless_;
  shm::Board board_;
  shm::Mail mail_;
  shm::Transfers transfers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t version_ = 0;                        // of all that stands below
  std::deque<c10::intrusive_ptr<ShmWork>> pending_;  // in their order
  std::size_t entered_ = 0;                          // how many of them, from the front
  bool is_driven_ = false;                           // a thread works on them
  bool is_lost_ = false;                             // one was given up half-way
  std::uint64_t submitted_ = 0, ended_ = 0;
  std::uint64_t alone_until_ = 0;  // calls that the worker brings to their ends
  std::thread::id ending_alone_;   // who ends one of them: what follows from it is one of them, too
  std::atomic<bool> is_ending_{false};
  std::condition_variable worker_wanted_;
  std::thread worker_;
};

}  // namespace ddp::comm
