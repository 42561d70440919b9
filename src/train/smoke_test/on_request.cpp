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
bool has_ranks() {
  return std::getenv(start::SpawnTicket::kVariable) == nullptr && Environment::from_variables().source != "none";
}

}  // namespace

void smoke_test_on_request(const std::function<SmokeSubject(at::Device)>& subject, const SmokeTestOptions& options) {
  const auto request = smoke::request();
  if (request == smoke::Request::none) return;
  auto chosen = options;
  if (request == smoke::Request::extended) chosen.steps = kStepsOfTheLongForm;
  const auto check = [&] {
    const auto group = init_process_group();
    const auto report = smoke_test(subject(group->device()), group, chosen);
    if (group->rank() == 0) std::fputs(report.text().c_str(), stdout);
    if (report.passed) return;
    group->shutdown();
    std::exit(EXIT_FAILURE);
  };
  if (has_ranks()) std::exit(run(check));
  try {
    spawn(chosen.ranks, [&](int) { check(); });
  } catch (const SpawnError& error) {
    if (error.exit_code() < 0 || !error.thrown().empty()) std::fprintf(stderr, "%s\n", error.what());
    std::exit(EXIT_FAILURE);
  }
  std::exit(EXIT_SUCCESS);
}

}  // namespace ddp
