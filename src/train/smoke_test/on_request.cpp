// The smoke test as a program's only work.
#include <cstdio>
#include <cstdlib>

#include "ddp/environment.hpp"
#include "ddp/run.hpp"
#include "ddp/smoke_test.hpp"
#include "ddp/spawn.hpp"
#include "start/spawn_ticket.hpp"
#include "train/smoke_test/request.hpp"

namespace ddp {
namespace {

constexpr int kStepsOfTheLongForm = 50;

// This process is a rank already, and not one that waits for the call of spawn() below.
bool has_ranks() { return !start::SpawnTicket::of_this_process() && Environment::from_variables().source != "none"; }

// In a process that ends in it.
void check(const std::function<SmokeSubject(at::Device)>& subject, const SmokeTestOptions& options) {
  const auto group = init_process_group();
  const auto report = smoke_test(subject(group->device()), group, options);
  if (group->rank() != 0) return;  // one rank's exit code is the job's
  std::fputs(report.text().c_str(), stdout);
  if (report.passed) return;
  group->shutdown();
  std::exit(EXIT_FAILURE);
}

int check_on_own_ranks(const std::function<void()>& check, int ranks) {
  try {
    spawn(ranks, [&](int) { check(); });
    return EXIT_SUCCESS;
  } catch (const SpawnError& error) {
    const bool is_verdict = error.exit_code() == EXIT_FAILURE && error.thrown().empty();
    if (!is_verdict) std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace

void smoke_test_on_request(const std::function<SmokeSubject(at::Device)>& subject, const SmokeTestOptions& options) {
  try {
    const auto request = smoke::request();
    if (request == smoke::Request::none) return;
    auto chosen = options;
    if (request == smoke::Request::extended) chosen.steps = kStepsOfTheLongForm;
    const auto work = [&] { check(subject, chosen); };
    std::exit(has_ranks() ? run(work) : check_on_own_ranks(work, chosen.ranks));
  } catch (const ConfigError& error) {  // main() may have no ddp::run() around this
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(EXIT_FAILURE);
  }
}

}  // namespace ddp
