// Work that rank 0 does for all: the others look in the store whether it is done, and hear of its death by the watch.
#include "base/thread_number.hpp"
#include "comm/hang_report.hpp"
#include "comm/store_task.hpp"
#include "comm/watch_frame.hpp"
#include "ddp/phase.hpp"

namespace ddp {

using comm::Breakage;

namespace {

constexpr std::chrono::milliseconds kLongestPause{50};  // many ranks ask rank 0, which has other work to do

/// What rank 0 has to say.
struct Outcome : comm::StoreTask {
  bool has_failed = false;
  std::string failure;
};

constexpr char kDone = '=', kFailed = '!';  // before the text
constexpr std::size_t kMaxFailure = 64 * 1024;

struct Keys {
  explicit Keys(std::uint64_t number) : done("section/" + std::to_string(number)), heard(done + "/heard") {}
  std::string done, heard;
};

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

void look_for_outcome(comm::Session& session, Outcome& outcome, const Keys& keys) {
  const auto& store = session.store();
  comm::StorePause pause(kLongestPause);
  for (bool go_on = true; go_on && !store->check({keys.done});) {
    pause.sleep();
    session.health().update([&] { go_on = !outcome.is_abandoned; });
    if (!go_on) return;
  }
  const auto text = store->get(keys.done);
  session.health().update([&] {
    outcome.has_failed = text.at(0) == kFailed;
    outcome.failure.assign(text.begin() + 1, text.end());
  });
  const auto others = static_cast<std::int64_t>(session.ranks().size()) - 1;
  if (store->add(keys.heard, 1) != others) return;
  store->deleteKey(keys.done);
  store->deleteKey(keys.heard);
}

void tell(comm::Session& session, const Keys& keys, const std::exception_ptr& error, const comm::Call& call) {
  try {
    const auto text =
        error ? kFailed + comm::watch::bounded_text(comm::text_of(error), kMaxFailure) : std::string(1, kDone);
    session.store()->set(keys.done, bytes_of(text));
  } catch (const std::exception& gone) {
    session.break_and_raise({Breakage::Kind::peer_unknown, -1, "lost the store: " + comm::text_of(gone)}, call.name());
  }
}

std::exception_ptr error_of(const std::function<void()>& work, std::atomic<pid_t>& working) {
  const Phase phase("rank0_section");
  working = own_thread_number();
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  working = 0;
  return error;
}

}  // namespace

void ProcessGroup::rank0_section(const std::function<void()>& work, const CallOptions& options) {
  const auto& session = impl_->session;
  const bool works = rank() == 0;
  comm::Call call{comm::Signature(comm::Operation::rank0_section), options.label,
                  works ? comm::Meeting::alone : comm::Meeting::roll_call};
  {
    const std::lock_guard lock(impl_->order);
    impl_->enter(call, comm::Start::at_once);
  }
  const Keys keys(call.number);
  if (works) {
    const auto error = error_of(work, impl_->working_for_all);
    if (!impl_->is_alone()) tell(*session, keys, error, call);
    session->recorder().complete(call);
    if (error) std::rethrow_exception(error);
    if (const auto breakage = session->health().breakage()) session->break_and_raise(*breakage, call.name());
    return;
  }
  const auto limit = options.timeout.value_or(timeout());
  const auto outcome = std::make_shared<Outcome>();
  comm::start_on_store(session, outcome, [session, keys](Outcome& own) { look_for_outcome(*session, own, keys); });
  const auto seen = comm::wait_for_task(*session, *outcome, call, limit);
  if (!seen.is_over) {
    auto text = comm::timeout_text(*session, call, limit);
    session->break_and_raise({Breakage::Kind::timed_out, origin().rank, std::move(text)}, call.name());
  }
  session->recorder().complete(call);
  const auto rank_0 = session->ranks().front();
  if (seen.has_failed)
    throw PeerLostError(origin(), call.name(), "rank " + std::to_string(rank_0) + " failed: " + seen.failure,
                        "all ranks know of it, and the group can go on", rank_0);
}

}  // namespace ddp
