#include "comm/sessions.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/inspection_server.hpp"
#include "base/thread_stack.hpp"
#include "comm/dump_signals.hpp"
#include "comm/dump_thread.hpp"
#include "comm/fatal_dump.hpp"
#include "comm/inspection_answer.hpp"
#include "comm/text_of.hpp"
#include "comm/watchdog.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

struct Parked {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<DeviceSide> device_side;
  std::shared_ptr<Session> session;
};

// Threads that look after the sessions.
struct Attendants {
  std::unique_ptr<InspectionServer> inspection;
  std::unique_ptr<Watchdog> watchdog;
};

// Never destroyed: exit handlers and static destructors come in an order that nobody chooses.
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<Parked> parked;
  Attendants attendants;  // while there are sessions
  Origin latest;
  std::atomic<bool> leaving{false}, exiting{false};
  std::terminate_handler previous = nullptr;
  std::once_flag installed;
};

Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

std::vector<std::shared_ptr<Session>> current() {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.sessions;
}

std::unique_ptr<InspectionServer> inspection() {
  auto server = std::make_unique<InspectionServer>(
      [](const std::optional<ProcessKey>& about) { return inspection_answer(current(), about); });
  if (!server->trouble().empty())
    log::detail(log::Subsystem::init, "ddprun --inspect cannot ask this process: {}", server->trouble());
  return server;
}

std::unique_ptr<Watchdog> watchdog() {
  try {
    return std::make_unique<Watchdog>(current);
  } catch (const std::system_error& error) {
    log::detail(log::Subsystem::init, "nobody looks after calls that last: {}", error.what());
    return nullptr;
  }
}

// Under the registry's lock.
void attend(Attendants& attendants) {
  auto& [server, dog] = attendants;
  if (!server || !server->is_of_this_process()) server = inspection();
  if (!dog || !dog->is_of_this_process()) dog = watchdog();
}

void prepare_dumps() {
  const bool takes_signals = dump_signals_are_wanted();
  if (takes_signals) dump_at_fatal_signals();
  start_dump_thread(takes_signals);
}

[[noreturn]] void on_terminate() {
  // Without memory even what follows may throw, which ends here again.
  thread_local bool is_ending = false;
  if (std::exchange(is_ending, true)) std::abort();
  const auto error = std::current_exception();
  const auto text = error ? text_of(error) : "std::terminate was called";
  note_last_words(text);
  fail_all(text);
  if (const auto previous = registry().previous) previous();
  std::abort();
}

void on_exit() {
  registry().leaving = true;
  leave_all();
  end_dump_thread();
  registry().exiting = true;
}

// Those whose calls have all ended.
void release_parked() noexcept {
  auto& all = registry();
  std::vector<Parked> released;  // destroyed after the lock is released
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.parked, [&](const Parked& one) {
    const bool is_over = one.session->is_sound() && one.session->is_idle();
    if (is_over) released.push_back(one);
    return is_over;
  });
}

// A call that nobody has waited for may still run on a parked backend's threads. They end before the exit destroys what
// they use.
void wait_for_parked() noexcept {
  auto& all = registry();
  std::vector<Parked> parked;
  {
    const std::lock_guard lock(all.mutex);
    parked = all.parked;
  }
  for (const auto& one : parked)
    if (one.session->is_sound()) one.session->wait_idle(kFarewell);
}

constexpr std::string_view kOrphanText = "an exception destroyed its process group";

}  // namespace

void remember(const std::shared_ptr<Session>& session) {
  auto& all = registry();
  std::call_once(all.installed, [&] {
    prepare_thread_stacks();
    all.previous = std::set_terminate(on_terminate);
    std::atexit(on_exit);
  });
  const std::lock_guard lock(all.mutex);
  all.sessions.push_back(session);
  all.latest = session->origin();
  attend(all.attendants);
  prepare_dumps();
}

void forget_ended() {
  release_parked();
  auto& all = registry();
  std::vector<std::shared_ptr<Session>> ended;  // destroyed after the lock is released
  Attendants unused;                            // the same, for they take the lock
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.sessions, [&](const auto& session) {
    const bool over = session->has_left() && session->wait_for_others(std::chrono::milliseconds(0));
    if (over) ended.push_back(session);
    return over;
  });
  if (all.sessions.empty()) std::swap(unused, all.attendants);
}

void fail_all(std::string_view text) noexcept {
  for (const auto& session : current())
    if (!session->has_left()) session->fail(text);
}

void fail_orphans() noexcept {
  for (const auto& session : current()) {
    if (!session->is_orphaned() || session->has_left()) continue;
    session->fail(kOrphanText);
    session->leave();
  }
}

void leave_all() noexcept {
  fail_orphans();
  for (const auto& session : current())
    if (!session->has_left()) session->wait_idle(kFarewell);
  wait_for_parked();
  release_parked();
  for (const auto& session : current()) session->leave();
  for (const auto& session : current())
    session->wait_for_others(session->health().breakage() ? kBrokenFarewell : kFarewell);
  auto& all = registry();
  std::vector<std::shared_ptr<Session>> ended;
  Attendants unused;
  const std::lock_guard lock(all.mutex);
  ended.swap(all.sessions);
  std::swap(unused, all.attendants);
}

void park(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<DeviceSide> device_side,
          std::shared_ptr<Session> session) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  all.parked.push_back({std::move(backend), std::move(device_side), std::move(session)});
}

bool has_company() noexcept {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  return std::ranges::any_of(all.sessions,
                             [](const auto& session) { return session->ranks().size() > 1 && !session->has_left(); });
}

bool is_leaving() noexcept { return registry().leaving; }

bool is_exiting() noexcept { return registry().exiting; }

Origin latest_origin() noexcept {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.latest;
}

}  // namespace ddp::comm
