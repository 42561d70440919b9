/// ddprun: runs a program as the ranks of a job on this machine. Free of LibTorch.

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>

#include "base/cores.hpp"
#include "ddp/error.hpp"
#include "start/descriptors.hpp"
#include "launch/inspect.hpp"
#include "launch/options.hpp"
#include "start/outcome.hpp"
#include "start/program.hpp"
#include "start/rank_environment.hpp"
#include "launch/say.hpp"
#include "launch/signals.hpp"
#include "start/store_socket.hpp"
#include "launch/supervisor.hpp"
#include "launch/watcher.hpp"

namespace ddp::launch {

using namespace start;

namespace {

constexpr int kNothingStarted = 2;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry; ++entry) entries.emplace_back(*entry);
  return entries;
}

/// The user's own value wins.
std::optional<int> choose_threads(int ranks) {
  if (!variable("OMP_NUM_THREADS").empty()) return std::nullopt;
  const double cores = allowed_cores();
  const int threads = threads_per_rank(cores, ranks);
  std::string text = std::to_string(cores);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  say("OMP_NUM_THREADS=" + std::to_string(threads) + " for each of " + std::to_string(ranks) + " ranks on " + text +
      " cores; set it to choose another");
  return threads;
}

void start_ranks(Supervisor& supervisor, const Options& options, const std::string& program) {
  const StoreSocket socket(options.master_port);
  const Job job{.id = make_job_id(),
                .ranks = options.ranks,
                .master_port = socket.port(),
                .store_descriptor = socket.descriptor(),
                .threads = choose_threads(options.ranks)};
  const auto inherited = own_environment();
  for (int rank = 0; rank < options.ranks; ++rank) {
    RankStart start{
        .program = program, .arguments = options.command, .environment = rank_environment(inherited, job, rank)};
    if (rank == 0) start.kept_descriptors.push_back(socket.descriptor());
    supervisor.start(start);
  }
}

int launch(int argc, char** argv) {
  open_missing_stdio();
  const auto options = parse_options(argc, argv, std::cout);
  if (!options) return EXIT_SUCCESS;
  if (options->inspected) return inspect(*options->inspected, std::cout) ? EXIT_SUCCESS : EXIT_FAILURE;
  const auto program = find_program(options->command.front(), variable("PATH"));
  Signals signals;
  Watcher watcher;
  Supervisor supervisor(*options, signals, watcher);
  start_ranks(supervisor, *options, program);
  supervisor.run();
  for (const auto& line : summary(supervisor.outcomes())) say(line);
  const auto* const failure = first_failure(supervisor.outcomes());
  return failure ? failure->exit_code() : EXIT_SUCCESS;
}

}  // namespace
}  // namespace ddp::launch

int main(int argc, char** argv) {
  try {
    return ddp::launch::launch(argc, argv);
  } catch (const ddp::ConfigError& error) {
    std::cerr << error.what() << "\n";
    return ddp::launch::kNothingStarted;
  } catch (const std::exception& error) {
    std::cerr << "ddprun: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
