#include "comm/shm_engine.hpp"

#include <pthread.h>

#include <utility>

#include "base/blocked_signals.hpp"

namespace ddp::comm {
namespace {

// As long as a rank sleeps between two looks at shared memory.
constexpr std::chrono::milliseconds kSlice{10};

// Longer than the watch takes, which hears of a wait after a second.
constexpr std::chrono::seconds kUntilTold{3};

std::vector<std::byte*> inboxes_of(const shm::Mapping& mapping) {
  std::vector<std::byte*> inboxes;
  for (std::uint32_t rank = 0; rank < mapping.layout().ranks; ++rank)
    inboxes.push_back(mapping.region(static_cast<int>(rank)));
  return inboxes;
}

int ranks_of(const shm::Memory& memory) { return static_cast<int>(memory.mapping().layout().ranks); }

}  // namespace

ShmEngine::ShmEngine(std::shared_ptr<shm::Memory> memory, int rank, std::function<bool()> is_hopeless)
    : memory_(std::move(memory)),
      is_hopeless_(std::move(is_hopeless)),
      board_(memory_->mapping().data(), rank, ranks_of(*memory_), shm::Patience::for_ranks(ranks_of(*memory_))),
      mail_(inboxes_of(memory_->mapping()), rank),
      transfers_(board_, memory_->mapping().data()) {}

ShmEngine::WorkPtr ShmEngine::submit(shm::Call call, std::vector<at::Tensor> tensors, c10d::OpType operation,
                                     OnLabels on_labels) {
  auto pending = c10::make_intrusive<ShmWork>(shared_from_this(), std::move(call), std::move(tensors), operation,
                                              std::move(on_labels));
  bool all_entered = false;
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(pending);
    ++submitted_;
    ++version_;
    if (ending_alone_ == std::this_thread::get_id()) {
      alone_until_ = submitted_;
      worker_wanted_.notify_one();
    }
    enter_those_with_room();
    all_entered = entered_ == pending_.size();
  }
  changed_.notify_all();
  if (!all_entered) make_room();
  return pending;
}

bool ShmEngine::enter_at_once(shm::Call& call) {
  const std::lock_guard lock(mutex_);
  if (is_driven_ || is_lost_ || !pending_.empty() || !board_.has_room()) return false;
  transfers_.enter(call);
  ++submitted_;
  return is_driven_ = true;
}

ShmEngine::WorkPtr ShmEngine::run_entered(shm::Call& call, const at::Tensor& tensor, Time deadline,
                                          const std::function<OnLabels()>& on_labels) {
  c10::intrusive_ptr<ShmWork> pending;
  try {
    if (!run_until(call, deadline))
      pending = c10::make_intrusive<ShmWork>(shared_from_this(), std::move(call), std::vector{tensor},
                                             c10d::OpType::UNKNOWN, on_labels());
  } catch (...) {  // no memory, which leaves the call between its ranks
    {
      const std::lock_guard lock(mutex_);
      is_lost_ = true;
    }
    let_go();
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    is_driven_ = false;
    ++version_;
    if (pending) {
      is_lost_ = pending->call.is_bound;
      pending_.push_front(pending);
      ++entered_;
    } else {
      ++ended_;
    }
  }
  changed_.notify_all();
  return pending;
}

// One on which the ranks do not agree in other ways than by their labels is not run here: the watch is to tell of it.
bool ShmEngine::run_until(shm::Call& call, Time deadline) {
  if (!transfers_.all_enter_soon(call) || !transfers_.all_agree(call)) return false;
  return transfers_.run(call, [&] { return is_over() || std::chrono::steady_clock::now() >= deadline; });
}

// Under the lock.
void ShmEngine::enter_those_with_room() {
  while (entered_ < pending_.size() && board_.has_room()) transfers_.enter(pending_[entered_++]->call);
}

// Another thread may enter the calls for which there is room, and take up all of it.
bool ShmEngine::can_go_on() {
  const std::lock_guard lock(mutex_);
  return entered_ > 0 || board_.has_room();
}

bool ShmEngine::take_over() {
  const std::lock_guard lock(mutex_);
  if (is_driven_ || is_lost_ || pending_.empty()) return false;
  return is_driven_ = true;
}

void ShmEngine::let_go() {
  {
    const std::lock_guard lock(mutex_);
    is_driven_ = false;
    ++version_;
  }
  changed_.notify_all();
}

void ShmEngine::help(const std::function<bool()>& is_enough) {
  for (;;) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      seen = version_;
    }
    if (is_enough()) return;
    if (take_over()) {
      const Driven driven{*this};
      while (!is_enough() && run_front(is_enough)) {
      }
      continue;
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kSlice, [&] { return version_ != seen; });
  }
}

// By the thread that drives. False: there is none, or it was given up.
bool ShmEngine::run_front(const std::function<bool()>& stop) {
  c10::intrusive_ptr<ShmWork> front;
  bool is_entered = false;
  {
    const std::lock_guard lock(mutex_);
    if (pending_.empty() || is_lost_) return false;
    front = pending_.front();
    enter_those_with_room();
    is_entered = entered_ > 0;
  }
  if (!is_entered) return board_.wait([&] { return can_go_on(); }, stop);
  if (!transfers_.run(front->call, stop)) {
    const std::lock_guard lock(mutex_);
    is_lost_ = front->call.is_bound;
    return false;
  }
  if (!front->call.trouble.empty() && !leaves_to_the_watch(stop)) return false;
  {
    const std::lock_guard lock(mutex_);
    pending_.pop_front();
    --entered_;
    if (ended_ < alone_until_) ending_alone_ = std::this_thread::get_id();
  }
  front->end();
  {
    const std::lock_guard lock(mutex_);
    ++ended_;
    ++version_;
    ending_alone_ = {};
  }
  changed_.notify_all();
  return true;
}

// Who watches over the ranks can tell more about calls that differ than memory does. False: it has told.
bool ShmEngine::leaves_to_the_watch(const std::function<bool()>& stop) {
  const auto limit = std::chrono::steady_clock::now() + kUntilTold;
  if (board_.wait([&] { return std::chrono::steady_clock::now() >= limit; }, stop)) return true;
  const std::lock_guard lock(mutex_);
  is_lost_ = true;
  return false;
}

// As many calls are under way as fit. Those that the other ranks have entered too can be brought to their ends here
// without waiting for long.
void ShmEngine::make_room() {
  if (!take_over()) return;
  const Driven driven{*this};
  const auto is_ready = [&] {
    const std::lock_guard lock(mutex_);
    if (pending_.empty() || entered_ == 0 || entered_ == pending_.size()) return false;
    return transfers_.can_run_alone(pending_.front()->call);
  };
  while (is_ready() && run_front([&] { return is_over(); })) {
  }
}

void ShmEngine::go_on_alone() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (alone_until_ == submitted_ || is_ending_) return;
    alone_until_ = submitted_;
    if (!worker_.joinable()) {
      const BlockedSignals blocked;
      try {
        worker_ = std::thread([self = shared_from_this()] { self->run_worker(); });
      } catch (const std::system_error&) {  // no more threads: who waits for the calls brings them to their ends
      }
    }
  }
  worker_wanted_.notify_one();
}

void ShmEngine::run_worker() {
  pthread_setname_np(pthread_self(), "ddp-shm");
  const auto is_enough = [this] {
    if (is_over()) return true;
    const std::lock_guard lock(mutex_);
    return ended_ >= alone_until_;
  };
  while (!is_over()) {
    {
      std::unique_lock lock(mutex_);
      worker_wanted_.wait(lock, [this] { return is_ending_ || ended_ < alone_until_; });
    }
    help(is_enough);
  }
}

void ShmEngine::end() noexcept {
  is_ending_ = true;
  {
    const std::lock_guard lock(mutex_);  // whoever was about to sleep has seen it or sleeps by now
  }
  worker_wanted_.notify_one();
  if (!worker_.joinable()) return;
  if (worker_.get_id() == std::this_thread::get_id())
    worker_.detach();
  else
    worker_.join();
}

}  // namespace ddp::comm
