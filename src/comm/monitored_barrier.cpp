// A barrier over the store, which works where the backend hangs and knows who has come.
#include <chrono>
#include <thread>
#include <utility>

#include "comm/hang_report.hpp"
#include "comm/store_task.hpp"

namespace ddp {

using comm::Breakage;

namespace {

constexpr std::chrono::milliseconds kLongestPause{20};  // not longer, for all wait for whoever looks last

std::string key_of(std::uint64_t number, int rank) {
  return "barrier/" + std::to_string(number) + '/' + std::to_string(rank);
}

// Who has not come.
struct Roll : comm::StoreTask {
  std::vector<int> missing;
};

struct Numbers {
  std::uint64_t call = 0;
  std::uint64_t previous = 0;  // of the monitored barrier before, 0 if there was none
};

void call_the_roll(comm::Session& session, Roll& roll, Numbers numbers, int rank) {
  const auto& store = session.store();
  store->set(key_of(numbers.call, rank), std::vector<std::uint8_t>{1});
  auto missing = roll.missing;
  comm::StorePause pause(kLongestPause);
  for (bool go_on = true; go_on;) {
    std::erase_if(missing, [&](int other) { return store->check({key_of(numbers.call, other)}); });
    session.health().update([&] {
      roll.missing = missing;
      go_on = !missing.empty() && !roll.is_abandoned;
    });
    if (go_on) pause.sleep();
  }
  // All have come here, so nobody looks for the one before any more.
  if (missing.empty() && numbers.previous > 0) store->deleteKey(key_of(numbers.previous, rank));
}

std::shared_ptr<Roll> start_roll(const std::shared_ptr<comm::Session>& session, Numbers numbers, int rank, int size) {
  auto roll = std::make_shared<Roll>();
  for (int i = 0; i < size; ++i)
    if (i != rank) roll->missing.push_back(i);
  comm::start_on_store(session, roll,
                       [session, numbers, rank](Roll& own) { call_the_roll(*session, own, numbers, rank); });
  return roll;
}

}  // namespace

void ProcessGroup::monitored_barrier(const CallOptions& options) {
  const auto& session = impl_->session;
  std::unique_lock lock(impl_->order);
  comm::Call call{comm::Signature(comm::Operation::monitored_barrier), options.label, comm::Meeting::roll_call};
  impl_->enter(call, comm::Start::at_once);
  const Numbers numbers{call.number, std::exchange(impl_->last_roll_call, call.number)};
  lock.unlock();
  if (!impl_->is_alone()) {
    const auto limit = options.timeout.value_or(timeout());
    const auto roll = start_roll(session, numbers, rank(), size());
    auto seen = comm::wait_for_task(*session, *roll, call, limit);
    if (!seen.is_over) {
      for (int& other : seen.missing) other = session->ranks()[static_cast<std::size_t>(other)];
      auto text = (seen.missing.size() == 1 ? "rank " : "ranks ") + comm::listed(seen.missing) +
                  " did not come within " + comm::in_seconds(limit) + ": " +
                  comm::hang_report(*session, call).value().text();
      session->break_and_raise({Breakage::Kind::timed_out, origin().rank, std::move(text)}, call.name());
    }
  }
  session->recorder().complete(call);
}

}  // namespace ddp
