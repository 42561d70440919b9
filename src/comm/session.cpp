#include "comm/session.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <optional>
#include <thread>

#include "base/phase.hpp"
#include "comm/dump_author.hpp"
#include "comm/failure_dump.hpp"
#include "comm/own_report.hpp"
#include "comm/quiet.hpp"
#include "comm/store.hpp"
#include "comm/text_of.hpp"
#include "comm/watch_mismatch.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kPart = "init_process_group";
constexpr std::uint64_t kNoCall = 0;  // no rank has left before it
constexpr std::chrono::milliseconds kSameErrorGrace{100};
constexpr std::chrono::seconds kStatusLimit{1};  // a live rank's watch thread answers within milliseconds

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error("the kernel gives no random bytes");
  std::string token;
  for (const auto byte : bytes) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

Origin origin_of(const Environment& environment) { return {environment.rank, environment.world_size}; }

std::vector<int> all_ranks(const Environment& environment) {
  std::vector<int> ranks(static_cast<std::size_t>(environment.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Failure::Kind kind_for_others(const Breakage& breakage) {
  if (breakage.is_echo()) return Failure::Kind::echo;
  return breakage.kind == Breakage::Kind::timed_out ? Failure::Kind::timed_out : Failure::Kind::raised;
}

}  // namespace

Session::Session(Origin origin, std::vector<int> ranks)
    : origin_(origin),
      ranks_(std::move(ranks)),
      record_(listed_group(origin_, ranks_)),
      recorder_(record_->recorder()),
      health_(origin_, recorder_) {
  CurrentAuthor::become(origin_);
}

std::shared_ptr<Session> Session::alone(const Environment& environment) {
  std::shared_ptr<Session> session(new Session(origin_of(environment), all_ranks(environment)));
  Arrival self{environment.rank, environment.world_size, host_name(), ::getpid()};
  session->arrivals_.push_back(std::move(self));
  return session;
}

std::shared_ptr<Session> Session::join(const Environment& environment, const Rendezvous& meeting,
                                       std::chrono::milliseconds timeout) {
  const Quiet quiet;  // where rank 0 has gone, its reason is what counts, not that its store does not answer
  std::shared_ptr<Session> session(new Session(origin_of(environment), all_ranks(environment)));
  session->store_ = open_store(environment, meeting.store_file, timeout);
  Arrival self{environment.rank, environment.world_size, host_name(),    ::getpid(), 0, {},
               meeting.backend,  meeting.device,         meeting.trouble};
  if (environment.rank == 0) session->open_hub(self, environment);

  RollCall roll(session->store_, environment, meeting_place(environment, meeting.store_file));
  bool is_own = false;  // the store, as far as is known
  const auto look_whose = [&] { is_own = is_own || require_own_job(*session->store_, environment); };
  try {
    look_whose();
    roll.arrive(self);
    session->arrivals_ = roll.wait_for_all(
        timeout,
        [&](const Arrival& arrival) {
          log::detail(log::Subsystem::init, "rank {} is here: host {}, process {}", arrival.rank, arrival.host,
                      arrival.pid);
          if (arrival.rank != 0) return;
          look_whose();
          session->open_link(environment, arrival, timeout);
        },
        [&] {
          session->throw_if_broken(kPart);
          look_whose();
        });
  } catch (const Error& error) {
    roll.give_up(dynamic_cast<const ConfigError*>(&error) != nullptr);  // one that comes late is to learn it, too
    session->fail(error.what());
    session->leave();
    throw;
  } catch (const std::exception& error) {
    // The store is gone. If rank 0 said why before it went, that is the reason.
    session->health_.wait(kNoCall, Clock::now() + std::chrono::seconds(1), [] { return false; });
    session->throw_if_broken(kPart);
    throw CommError(session->origin_, kPart, "lost the store: " + text_of(error), "look at the output of rank 0");
  }
  return session;
}

std::shared_ptr<Session> Session::part(const std::vector<int>& ranks, c10::intrusive_ptr<c10d::Store> store) {
  std::vector<int> in_world;
  for (const int rank : ranks) in_world.push_back(ranks_[static_cast<std::size_t>(rank)]);
  std::shared_ptr<Session> session(new Session(origin_, std::move(in_world)));
  for (const int rank : ranks) session->arrivals_.push_back(arrivals_[static_cast<std::size_t>(rank)]);
  session->store_ = std::move(store);
  session->set_warn_after(warn_after());
  const std::lock_guard lock(parts_mutex_);
  std::erase_if(parts_, [](const auto& part) { return part.expired(); });
  parts_.push_back(session);
  return session;
}

std::vector<std::shared_ptr<Session>> Session::parts() {
  std::vector<std::shared_ptr<Session>> living;
  const std::lock_guard lock(parts_mutex_);
  for (const auto& part : parts_)
    if (auto session = part.lock(); session && !session->has_left()) living.push_back(std::move(session));
  return living;
}

void Session::open_hub(Arrival& self, const Environment& environment) {
  self.watch_token = random_token();
  hub_ = std::make_unique<WatchHub>(
      WatchHub::Options{environment.world_size, self.watch_token, environment.single_host(), ranks_});
  self.watch_port = hub_->port();
}

void Session::open_link(const Environment& environment, const Arrival& rank_0, std::chrono::milliseconds timeout) {
  WatchLink::Options options;
  options.host = environment.single_host() || environment.rank == 0 ? "127.0.0.1" : environment.master_address;
  options.port = rank_0.watch_port;
  options.rank = environment.rank;
  options.world_size = environment.world_size;
  options.token = rank_0.watch_token;
  options.connect_timeout = std::min<std::chrono::milliseconds>(timeout, std::chrono::seconds(30));
  WatchEvents events;
  events.on_failure = [this](Failure failure) {
    failure.rank = ranks_[static_cast<std::size_t>(failure.rank)];
    on_failure(std::move(failure));
  };
  events.on_left = [this](int rank, std::uint64_t last_call) {
    health_.peer_left(ranks_[static_cast<std::size_t>(rank)], last_call);
  };
  events.status = [this] { return recorder_.status(); };
  events.report = [this](std::uint64_t call) { return encode_report(own_report(recorder_, call)); };
  link_ = std::make_unique<WatchLink>(options, std::move(events));
}

// A rank that dies before it is under a part's watch is known here alone.
void Session::on_failure(Failure failure) {
  health_.peer_failed(failure);
  if (const auto breakage = health_.breakage()) hear_of_failure(*breakage, origin_, "process group");
  if (failure.kind != Failure::Kind::lost) return;
  for (const auto& part : parts())
    if (std::find(part->ranks_.begin(), part->ranks_.end(), failure.rank) != part->ranks_.end())
      part->on_failure(failure);
}

void Session::throw_if_broken(std::string_view part) const {
  if (const auto breakage = health_.breakage()) breakage->raise(origin_, part);
}

// An error of this library's own kinds is a reason by itself, whatever the other ranks say.
void Session::rethrow_if_ours(const std::exception_ptr& error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const Error& ours) {
    fail(ours.what());
    throw;
  } catch (...) {
  }
}

void Session::run_abandonable(std::string_view part, std::chrono::milliseconds timeout, std::function<void()> work) {
  struct Shared {
    bool done = false;
    std::exception_ptr error;
  };
  auto shared = std::make_shared<Shared>();
  std::thread([self = shared_from_this(), shared, work = std::move(work)] {
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    self->health_.update([&] {
      shared->error = error;
      shared->done = true;
    });
  }).detach();
  bool done = false;
  std::exception_ptr error;
  const auto is_done = [&] {
    if (shared->done) error = shared->error;
    return done = shared->done;
  };
  health_.wait(kNoCall, deadline_in(timeout), is_done);
  // Where another rank met the same error first, this one is about to meet it too.
  if (!done && health_.obstacle(kNoCall)) health_.wait_despite_obstacles(kSameErrorGrace, is_done);
  if (done && !error) return;
  rethrow_if_ours(error);
  if (error) health_.wait(kNoCall, Clock::now() + std::chrono::milliseconds(1500), [] { return false; });
  if (const auto obstacle = health_.obstacle(kNoCall)) break_and_raise(*obstacle, part);
  if (error) break_and_raise({Breakage::Kind::peer_unknown, -1, text_of(error)}, part);
  break_and_raise(
      {Breakage::Kind::timed_out, -1, "no connection to all ranks within " + in_seconds(timeout) + every_status()},
      part);
}

void Session::tell_wait() {
  constexpr std::size_t before = 3;  // a rank may be ahead by what it need not wait for: a broadcast or two
  const auto open = recorder_.first_open(before);
  if (open.empty() || !link_ || !recorder_.note_wait(open[0].number)) return;
  std::vector<MadeCall> calls;
  for (const auto& call : open) {
    const auto* const caller = call.meeting == Meeting::plan ? watch::kByModel
                               : data_used_up()              ? watch::kByProgramAfterItsData
                                                             : watch::kByProgram;
    calls.push_back({call.number, call.kind(), call.description() + caller});
  }
  link_->waits_in(std::move(calls));
}

void Session::break_and_raise(Breakage breakage, std::string_view part) {
  health_.break_with(breakage);
  auto first = *health_.breakage();
  if (link_ && !reported_.exchange(true)) {
    std::string text(part);
    text += ": " + first.text;
    link_->report(kind_for_others(first), text);
  }
  first.text += dump_at_failure(first, origin_, part);
  first.raise(origin_, part);
}

void Session::fail(std::string_view text) noexcept {
  health_.break_with({Breakage::Kind::failed_here, origin_.rank, std::string(text)});
  const auto first = health_.breakage();
  if (link_ && !reported_.exchange(true)) link_->report(kind_for_others(*first), text);
  for (const auto& part : parts()) part->fail(text);
}

std::optional<std::vector<std::string>> Session::ask(const Question& question, std::chrono::milliseconds limit,
                                                     const std::vector<bool>& held) {
  return link_ ? link_->ask_all(question, limit, held) : std::vector<std::string>{recorder_.status()};
}

std::vector<std::string> Session::statuses() { return ask({}, kStatusLimit).value(); }

const Arrival& Session::own_arrival() const {
  const auto place = std::find(ranks_.begin(), ranks_.end(), origin_.rank);
  return arrivals_[static_cast<std::size_t>(place - ranks_.begin())];
}

std::string Session::every_status() {
  std::string text;
  const auto lines = statuses();
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    text += "\n  rank " + std::to_string(ranks_[rank]) + ": ";
    text += lines[rank].empty() ? "no answer" : lines[rank];
  }
  return text;
}

void Session::set_backend(std::string name) {
  record_->name_backend(name);
  const std::lock_guard lock(backend_mutex_);
  backend_ = std::move(name);
}

std::string Session::backend() const {
  const std::lock_guard lock(backend_mutex_);
  return backend_;
}

void Session::set_progress(std::shared_ptr<Progress> progress) {
  const std::lock_guard lock(backend_mutex_);
  progress_.swap(progress);
}

std::shared_ptr<Progress> Session::current_progress() const {
  const std::lock_guard lock(backend_mutex_);
  return progress_;
}

void Session::go_on_alone() noexcept {
  if (const auto progress = current_progress()) progress->go_on_alone();
}

void Session::wait_idle(std::chrono::milliseconds limit) {
  waits_idle_ = true;
  if (!is_idle()) go_on_alone();
  health_.wait(recorder_.entered(), Clock::now() + limit, [&] { return is_idle(); });
}

void Session::leave() noexcept {
  if (left_.exchange(true) || !link_) return;
  link_->leave(recorder_.entered());
}

bool Session::wait_for_others(std::chrono::milliseconds limit) noexcept {
  return !hub_ || others_given_up_ || hub_->wait_all_left(limit);
}

}  // namespace ddp::comm
