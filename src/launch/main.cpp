/// ddprun: runs a program as the ranks of a job, on this machine or as one of several. Free of LibTorch.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "base/cores.hpp"
#include "ddp/error.hpp"
#include "launch/core_sets.hpp"
#include "launch/dial.hpp"
#include "launch/dry_run.hpp"
#include "launch/inspect.hpp"
#include "launch/launcher.hpp"
#include "launch/meeting.hpp"
#include "launch/options.hpp"
#include "launch/say.hpp"
#include "start/descriptors.hpp"
#include "start/listening_socket.hpp"
#include "start/program.hpp"
#include "start/signal_name.hpp"

namespace ddp::launch {
namespace {

using start::ListeningSocket;

constexpr int kNothingStarted = 2;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::string in_words(double cores) {
  std::string text = std::to_string(cores);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

/// The user's own value wins.
std::optional<int> choose_threads(int ranks, const std::vector<std::vector<int>>& sets) {
  if (!variable("OMP_NUM_THREADS").empty()) return std::nullopt;
  const double cores = allowed_cores();
  int threads = threads_per_rank(cores, ranks);
  for (const auto& set : sets) threads = std::min(threads, static_cast<int>(set.size()));
  say("OMP_NUM_THREADS=" + std::to_string(threads) + " for each of " + std::to_string(ranks) + " ranks on " +
      in_words(cores) + " cores; set it to choose another");
  return threads;
}

/// All but what the meeting decides.
RankPlan plan_ranks(const Options& options) {
  RankPlan plan{.program = start::find_program(options.command.front(), variable("PATH")),
                .arguments = options.command,
                .environment = start::own_environment(),
                .job = {.ranks = options.ranks,
                        .nodes = options.nodes,
                        .node_rank = options.node_rank,
                        .role = options.role,
                        .is_served = true,
                        .check = options.check},
                .cores = {}};
  if (options.binds_cores) plan.cores = share_out(allowed_cpus("/sys/devices/system"), options.ranks);
  plan.job.threads = choose_threads(options.ranks, plan.cores);
  return plan;
}

void require_own_address(const std::string& address) {
  if (address.empty() || is_own_address(address)) return;
  throw ConfigError({}, "ddprun", "--local-addr " + address + " is no address of this machine", "see ip address");
}

/// Where the ranks look for the store, and where it listens.
void choose_address(const Options& options, start::Job& job) {
  if (!options.local_address.empty()) job.master_address = options.local_address;
  if (!options.master_address.empty()) job.master_address = options.master_address;
}

std::string store_address(const Options& options) {
  if (!options.local_address.empty()) return options.local_address;
  return options.nodes > 1 || !options.master_address.empty() ? ListeningSocket::kEverywhere
                                                              : ListeningSocket::kLoopback;
}

void take_terms(const Terms& terms, start::Job& job) {
  job.id = terms.id;
  job.world_size = terms.world_size;
  job.first_rank = terms.first_rank;
  job.max_restarts = terms.max_restarts;
  job.master_port = terms.store_port;
}

/// No store is served for what is only shown: started by hand, rank 0 serves it.
int show_only(const Options& options, RankPlan plan) {
  plan.job.is_served = false;
  take_terms({.id = options.job_id.empty() ? "ANY_NEW_ID" : options.job_id,
              .log_name = {},
              .world_size = options.ranks * options.nodes,
              .max_restarts = options.max_restarts,
              .store_port = options.nodes == 1 ? options.master_port : std::uint16_t(0),
              .first_rank = options.ranks * options.node_rank},
             plan.job);
  show(plan, std::cout);
  return EXIT_SUCCESS;
}

int launch(int argc, char** argv) {
  start::open_missing_stdio();
  const auto options = parse_options(argc, argv, std::cout);
  if (!options) return EXIT_SUCCESS;
  if (options->inspected) return inspect(*options->inspected, std::cout) ? EXIT_SUCCESS : EXIT_FAILURE;
  require_own_address(options->local_address);
  auto plan = plan_ranks(*options);
  choose_address(*options, plan.job);
  if (options->only_shows) return show_only(*options, std::move(plan));
  Signals signals;
  std::optional<ListeningSocket> store;
  if (options->node_rank == 0) {
    store.emplace(store_address(*options), options->nodes == 1 ? options->master_port : std::uint16_t(0));
    plan.job.store_descriptor = store->descriptor();
  }
  auto meeting = store ? lead_meeting(*options, store->port(), signals) : join_meeting(*options, signals);
  take_terms(meeting.terms, plan.job);
  return Launcher(*options, std::move(plan), std::move(meeting), signals).run();
}

}  // namespace
}  // namespace ddp::launch

int main(int argc, char** argv) {
  using namespace ddp::launch;
  try {
    return launch(argc, argv);
  } catch (const ddp::Error& error) {  // of the command line, the program, the port, or nodes that did not come
    std::cerr << error.what() << "\n";
    return kNothingStarted;
  } catch (const Interrupted& interrupted) {
    say("ended by " + ddp::start::signal_name(interrupted.signal) + " before all nodes were there");
    return 128 + interrupted.signal;
  } catch (const std::exception& error) {
    say(error.what());
    return EXIT_FAILURE;
  }
}
