#include "ddp/work.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "comm/hang_report.hpp"
#include "comm/text_of.hpp"
#include "comm/work_state.hpp"

namespace ddp {

using comm::Breakage;

namespace {

// A dead peer is seen by the backend and by the watch within some 30 ms of each other. Not shorter, for
// a peer that throws has to unwind before it can say so; not longer, for the user waits for the name.
constexpr std::chrono::milliseconds kNamingGrace{1500};

// A call that all ranks have entered completes although one of them has failed since: its bytes are under
// way. So every rank names the same call, the first that the failed rank did not enter.
constexpr std::chrono::milliseconds kCompletionGrace{100};

// Known to all ranks by their own comparison, so nothing that another one says is the reason.
bool is_mismatch(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const CallMismatchError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void Work::wait() const {
  if (state_) state_->wait();
}

void Work::wait(std::chrono::milliseconds timeout) const {
  if (state_) state_->wait(timeout);
}

bool Work::is_completed() const { return !state_ || state_->is_completed(); }

std::optional<std::chrono::steady_clock::time_point> Work::completed_at() const {
  return state_ ? state_->completed_at() : std::nullopt;
}

Work::State::State(std::shared_ptr<comm::Session> session, comm::Call call, std::chrono::milliseconds timeout)
    : session_(std::move(session)),
      call_(std::move(call)),
      timeout_(timeout),
      deadline_(comm::deadline_of(call_, timeout)) {
  session_->call_started();
}

void Work::State::complete(std::exception_ptr error) noexcept {
  if (!error || is_mismatch(error)) session_->recorder().complete(call_);
  session_->health().update([&] {
    done_ = true;
    ended_ = Clock::now();
    error_ = std::move(error);
    session_->call_ended();
  });
}

void Work::State::begun(c10::intrusive_ptr<c10d::Work> work, const c10::Stream& stream) noexcept {
  session_->health().update([&] {
    on_device_ = std::move(work);
    stream_ = stream;
  });
}

void Work::State::complete_unseen(std::exception_ptr error) noexcept {
  complete(error);
  if (error) break_unseen({Breakage::Kind::failed_here, session_->origin().rank, comm::text_of(error)}, kNamingGrace);
}

void Work::State::expire() noexcept {
  auto text = comm::timeout_text(*session_, call_, timeout_);
  break_unseen({Breakage::Kind::timed_out, session_->origin().rank, std::move(text)}, {});
}

bool Work::State::is_left_alone() noexcept {
  const auto obstacle = session_->health().obstacle(call_.number);
  if (!obstacle) return false;
  try {
    session_->break_and_raise(*obstacle, call_.name());
  } catch (const std::exception&) {
  }
  return true;
}

// The call that will tell of it is another one. A rank that has left did so after its own call, so that it is not why.
void Work::State::break_unseen(Breakage breakage, std::chrono::milliseconds grace) noexcept {
  auto& health = session_->health();
  for (const auto end = Clock::now() + grace; !health.breakage() && Clock::now() < end;)
    health.wait_despite_obstacles(std::chrono::milliseconds(10), [] { return false; });
  breakage.text = call_.name() + ", on the device: " + breakage.text;
  try {
    session_->break_and_raise(std::move(breakage), call_.name());
  } catch (const std::exception&) {  // the group is broken, which its next call says
  }
}

void Work::State::wait() { wait_until(deadline_, timeout_); }

void Work::State::wait(std::chrono::milliseconds timeout) { wait_until(comm::deadline_in(timeout), timeout); }

bool Work::State::is_completed() {
  bool done = false;
  session_->health().update([&] { done = done_; });
  if (!done) session_->go_on_alone();
  return done;
}

std::optional<Work::State::Clock::time_point> Work::State::completed_at() {
  std::optional<Clock::time_point> ended;
  session_->health().update([&] {
    if (done_) ended = ended_;
  });
  return ended;
}

void Work::State::wait_until(Clock::time_point deadline, std::chrono::milliseconds limit) {
  bool done = false;
  std::exception_ptr error;
  c10::intrusive_ptr<c10d::Work> on_device;
  const auto is_done = [&] {
    error = error_;
    on_device = on_device_;
    return done = done_ || on_device;
  };
  session_->wait_working(call_, deadline, is_done);
  if (!done && session_->health().breakage()) session_->wait_despite_obstacles(kCompletionGrace, is_done);
  if (!done || error) give_up(error, limit);
  if (on_device) {
    try {
      on_device->synchronize();
    } catch (const std::exception&) {
      give_up(std::current_exception(), limit);
    }
    // What a broken group has left on the device is no result.
    if (session_->health().breakage()) give_up(nullptr, limit);
    return finish_on_device();
  }
  finish_once();
}

void Work::State::give_up(const std::exception_ptr& error, std::chrono::milliseconds limit) {
  if (is_mismatch(error)) std::rethrow_exception(error);
  auto& health = session_->health();
  if (error) health.wait(call_.number, Clock::now() + kNamingGrace, [] { return false; });
  const auto part = call_.name();
  if (const auto obstacle = health.obstacle(call_.number)) session_->break_and_raise(*obstacle, part);
  if (error) {
    const auto departure = call_.peer >= 0 ? health.departure(call_.peer) : health.departure();
    if (departure) session_->break_and_raise(*departure, part);
    session_->break_and_raise({Breakage::Kind::peer_unknown, -1, comm::text_of(error)}, part);
  }
  auto text = comm::timeout_text(*session_, call_, limit);
  session_->break_and_raise({Breakage::Kind::timed_out, session_->origin().rank, std::move(text)}, part);
}

void Work::State::finish_once() {
  const std::lock_guard lock(finishing_);
  if (finish_) std::exchange(finish_, nullptr)();
}

// What the first wait has queued on its stream belongs to the result that the others wait for. The memory that the call
// has used is its own stream's, which so comes behind that, too.
void Work::State::finish_on_device() {
  const std::lock_guard lock(finishing_);
  const auto current = c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device());
  if (finished_) return finished_->block(current);
  if (!finish_ && current == *stream_) return;
  const auto finish = std::exchange(finish_, nullptr);  // with the memory, which must not go before the end
  if (finish) finish();
  finished_.emplace(stream_->device_type());
  finished_->record(current);
  if (current != *stream_) finished_->block(*stream_);
}

}  // namespace ddp
