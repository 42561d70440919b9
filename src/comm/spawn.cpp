#include "ddp/spawn.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/blocked_signals.hpp"
#include "base/cores.hpp"
#include "base/descriptor.hpp"
#include "comm/run_body.hpp"
#include "comm/spawn_words.hpp"
#include "comm/store_probe.hpp"
#include "ddp/log.hpp"
#include "start/descriptors.hpp"
#include "start/program_start.hpp"
#include "start/rank_environment.hpp"
#include "start/spawn_calls.hpp"
#include "start/spawn_report.hpp"
#include "start/spawn_ticket.hpp"
#include "start/spawned_ranks.hpp"
#include "start/start_rank.hpp"

namespace ddp {
namespace {

using Body = std::function<void(int)>;
using start::SpawnTicket;

constexpr int kMostRanks = 4096;  // ddprun's

thread_local bool runs_a_body = false;

start::SpawnCalls& calls() {
  static start::SpawnCalls all;
  return all;
}

// Read once: only at the first call it is sure that the variable is this process's.
const std::optional<SpawnTicket>& own_ticket() {
  static const auto ticket = SpawnTicket::of_this_process();
  return ticket;
}

std::string words_for(const std::source_location& place) {
  return std::filesystem::path(place.file_name()).filename().string() + ":" + std::to_string(place.line());
}

ConfigError wrong(const std::string& what, const std::string& remedy) { return {Origin{}, "spawn", what, remedy}; }

void check(int ranks, const SpawnOptions& options) {
  if (ranks < 1) throw wrong("ranks=" + std::to_string(ranks) + " is less than 1", "a rank for each device or core");
  if (ranks > kMostRanks)
    throw wrong("ranks=" + std::to_string(ranks) + " is more than any machine is for",
                "a rank for each device or core");
  const auto nnodes = "nnodes=" + std::to_string(options.nnodes);
  if (options.nnodes < 1) throw wrong(nnodes + " is less than 1", "1 for this host alone");
  if (options.node_rank < 0 || options.node_rank >= options.nnodes)
    throw wrong("node_rank=" + std::to_string(options.node_rank) + " is none of " + nnodes, "nodes count from 0");
  if (options.nnodes > 1 && options.master_addr.empty())
    throw wrong(nnodes + " without master_addr", "give the name or address of node 0");
  if (options.nnodes > 1 && options.master_port == 0)
    throw wrong(nnodes + " without master_port", "give a free port of node 0, the same on each node");
}

void refuse_launchers() {
  const char* const rank = std::getenv("RANK");
  if (rank == nullptr) return;
  throw wrong(
      std::string("this process is a rank already, RANK=") + rank + ", of ddprun, torchrun or alike",
      "start the program without a launcher, or call the function instead of spawning it; without either, unset "
      "RANK");
}

// In a rank

[[noreturn]] void run_as_rank(const SpawnTicket& ticket, const Body& body) {
  const start::SpawnReport report(ticket.report);
  report.begun();
  runs_a_body = true;
  const int code =
      comm::run_body([&] { body(ticket.local_rank); },
                     [&](const comm::Thrown& thrown) { report.threw(thrown.exit_code, thrown.type, thrown.text); });
  if (code == 0) report.done();
  std::exit(code);
}

// What an earlier call came to, as far as it is known here.
void end_again(const start::SpawnPast& past, const std::source_location& location) {
  using How = start::SpawnPast::How;
  const auto call = "the call at " + words_for(location) + " failed in the process that started this rank";
  if (past.how == How::rank_failed)
    throw SpawnError(0, call, {}, {.rank = past.rank, .exit_code = past.exit_code, .signal = past.signal});
  if (past.how == How::not_started) throw wrong(call, {});
}

// This process exists for one call alone, of which the others know nothing.
void call_in_rank(const SpawnTicket& ticket, const std::source_location& location, const Body& body) {
  const auto place = start::place_of(location);
  const int number = calls().begin(place);
  if (place == ticket.place && number == ticket.number) run_as_rank(ticket, body);
  const auto ended = ticket.ended.find(place);
  if (number > 0 && ended != ticket.ended.end() && number <= static_cast<int>(ended->second.size())) {
    const auto& past = ended->second[static_cast<std::size_t>(number - 1)];
    calls().end(place, past);
    return end_again(past, location);
  }
  // It was under way on another thread when this process was started, and is not its business.
  log::detail(log::Subsystem::init, "spawn at {} waits in a rank of another one", words_for(location));
  for (;;) ::pause();
}

// In the process that spawns

/// One call from its begin to its end.
class Call {
 public:
  explicit Call(const std::source_location& location)
      : ended_(calls().ended()), place_(start::place_of(location)), number_(calls().begin(place_)) {
    if (number_ > 0) return;
    throw std::logic_error(
        "spawn: two threads are in the call at " + words_for(location) +
        " at once, which the new processes cannot tell apart; let them follow each other, or call it "
        "on two lines");
  }
  ~Call() { calls().end(place_, how_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void returns() { how_.how = start::SpawnPast::How::returned; }
  void fails(const SpawnError& error) {
    how_ = {start::SpawnPast::How::rank_failed, error.rank(), error.exit_code(), error.signal()};
  }

  SpawnTicket ticket(int local_rank, int report) const {
    return {.parent = ::getpid(),
            .local_rank = local_rank,
            .report = report,
            .place = place_,
            .number = number_,
            .ended = ended_};
  }

 private:
  start::SpawnPasts ended_;
  std::uint64_t place_;
  int number_;
  start::SpawnPast how_;
};

struct Pipe {
  Descriptor read_end, write_end;
};

Pipe open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "spawn: pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<std::string> environment_without_ticket() {
  auto entries = start::own_environment();
  const std::string ticket = std::string(SpawnTicket::kVariable) + "=";
  std::erase_if(entries, [&](const std::string& entry) { return entry.starts_with(ticket); });
  return entries;
}

/// Rank 0 serves the store on it; of the other nodes nobody does.
comm::watch::Listener listen(const SpawnOptions& options) {
  if (options.nnodes == 1) return comm::watch::listen_on_free_port(true);
  if (options.node_rank > 0) return {{}, options.master_port};
  auto port = comm::take_store_port(options.master_port);
  if (port.error == 0) return {std::move(port.socket), options.master_port};
  throw wrong("cannot listen on master_port=" + std::to_string(options.master_port) + ": " +
                  std::generic_category().message(port.error),
              "another job may hold the port; choose another one");
}

std::optional<int> choose_threads(int ranks) {
  const char* const own = std::getenv("OMP_NUM_THREADS");
  if (own != nullptr && *own != '\0') return std::nullopt;
  return threads_per_rank(allowed_cores(), ranks);
}

start::Job job_for(int ranks, const SpawnOptions& options, const comm::watch::Listener& listener) {
  const bool is_alone = options.nnodes == 1;
  return {.id = is_alone ? start::make_job_id() : "spawn-" + std::to_string(listener.port),  // alike on all nodes
          .world_size = options.nnodes * ranks,
          .first_rank = options.node_rank * ranks,
          .ranks = ranks,
          .nodes = options.nnodes,
          .node_rank = options.node_rank,
          .master_address = is_alone ? "127.0.0.1" : options.master_addr,
          .master_port = listener.port,
          .store_descriptor = listener.socket.get(),
          .threads = choose_threads(ranks)};
}

pid_t start_process(const start::RankStart& rank) {
  const BlockedSignals held;  // no handler of the program runs in the new process
  return start::start_rank(rank, [] {
    start::restore(start::program_start());
    start::redirect_to_null(STDIN_FILENO);
  });
}

void start_all(start::SpawnedRanks& ranks, const Call& call, int count, const SpawnOptions& options) {
  const auto listener = listen(options);
  const auto job = job_for(count, options, listener);
  const auto inherited = environment_without_ticket();
  start::RankStart rank{.program = start::own_program(),
                        .arguments = start::program_start().arguments,
                        .environment = {},
                        .part = "spawn",
                        .own_group = false};
  for (int local_rank = 0; local_rank < count; ++local_rank) {
    auto pipe = open_pipe();
    rank.environment = start::rank_environment(inherited, job, local_rank);
    rank.environment.push_back(std::string(SpawnTicket::kVariable) + "=" +
                               call.ticket(local_rank, pipe.write_end.get()).text());
    rank.kept_descriptors = {pipe.write_end.get()};
    const int number = options.node_rank * count + local_rank;
    if (number == 0) rank.kept_descriptors.push_back(listener.socket.get());
    ranks.add(number, start_process(rank), std::move(pipe.read_end));
  }
}

}  // namespace

void spawn(int ranks, const Body& body, const SpawnOptions& options, std::source_location place) {
  if (!body) throw std::invalid_argument("spawn: the function is empty");
  if (runs_a_body) throw std::logic_error("spawn: called inside of a function that spawn() runs: a rank spawns none");
  check(ranks, options);
  if (const auto& ticket = own_ticket()) return call_in_rank(*ticket, place, body);
  refuse_launchers();
  Call call(place);
  start::SpawnedRanks started(options.shutdown_timeout);
  start_all(started, call, ranks, options);
  started.wait();
  const auto* const failed = started.first_failed();
  if (failed == nullptr) return call.returns();
  const auto error = comm::spawn_error(*failed, options.nnodes * ranks, words_for(place));
  call.fails(error);
  throw error;
}

}  // namespace ddp
