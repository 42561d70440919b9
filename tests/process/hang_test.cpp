// Who holds a call up, and why: each fault that makes ranks wait is named, in the time-out of every rank and before it.
#include <gtest/gtest.h>
#include <poll.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "ddp/data_loader.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/metrics.hpp"
#include "ddp/phase.hpp"
#include "ddp/run.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;
using Body = std::function<void(const Group&)>;
using Clock = std::chrono::steady_clock;

/// Each rank's error, as its output; the group's timeout is that of the options.
std::vector<std::string> errors_of(int world, const Body& body, std::chrono::milliseconds timeout = 2s) {
  const auto outcomes = observe_ranks(world, [&](const Environment& environment) {
    ProcessGroupOptions options;
    options.environment = environment;
    options.timeout = timeout;
    const auto group = init_process_group(options);
    try {
      body(group);
    } catch (const CommError& error) {
      const auto text = std::string(error.what()) + '\n';
      EXPECT_GE(::write(STDOUT_FILENO, text.data(), text.size()), 0);
    }
  });
  std::vector<std::string> texts;
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << ": " << outcome.ending() << '\n' << outcome.output;
    texts.push_back(outcome.output);
  }
  return texts;
}

void expect_on_all_ranks(const std::vector<std::string>& errors, const std::vector<std::string>& expected) {
  for (const auto& error : errors)
    for (const auto& text : expected) EXPECT_TRUE(contains(error, text));
}

void reduce(ProcessGroup& group) {
  auto tensor = at::ones({8});
  group.all_reduce(tensor);
}

/// Until the others have given up; then this rank hears why, in its next call.
void until_broken(ProcessGroup& group, const std::function<void()>& wait = [] { std::this_thread::sleep_for(1ms); }) {
  const auto limit = Clock::now() + 15s;
  const auto is_broken = [&] {
    try {
      group.check();
      return false;
    } catch (const CommError&) {
      return true;
    }
  };
  while (!is_broken() && Clock::now() < limit) wait();
  reduce(group);
}

[[gnu::noinline]] void ponder_in_a_function_with_a_name(ProcessGroup& group) { until_broken(group); }

TEST(Hang, OfARankInItsOwnCodeNamesTheFunctionOnAllRanks) {
  const auto errors = errors_of(3, [](const Group& group) {
    group->mark_step(7);
    reduce(*group);
    if (group->rank() == 1) return ponder_in_a_function_with_a_name(*group);
    reduce(*group);
  });
  expect_on_all_ranks(
      errors, {"all_reduce #2, step 7: timed out after 2.0 s: rank 1 is in code of its own in step 7, its "
               "thread sleeps",
               "see its stack below", "\n  rank 1: last completed all_reduce #1",
               "ponder_in_a_function_with_a_name(ddp::ProcessGroup&)", "\n  rank 2: last completed all_reduce #1"});
  EXPECT_TRUE(contains(errors[1], "rank 1 of 3: all_reduce #2, step 7: as rank "));
}

TEST(Hang, OfASlowRankNamesItsPhaseAndThatItComputes) {
  const auto errors = errors_of(2, [](const Group& group) {
    ddp::step(5);
    reduce(*group);
    if (group->rank() == 0) {
      const Phase phase("forward");
      until_broken(*group, [] {});
    }
    reduce(*group);
  });
  expect_on_all_ranks(errors, {"timed out after 2.0 s: rank 0 is in \"forward\" in step 5 since "});
  // Beside other tests it may lack the core that it would compute on, which is then what is wrong.
  for (const auto& error : errors) {
    const bool lacks_cores = error.find("its thread waits for a core") != std::string::npos;
    EXPECT_TRUE(contains(error, lacks_cores ? "its threads need cores: fewer ranks or threads"
                                            : "give the ranks equal work, or a longer timeout (DDP_TIMEOUT)"));
  }
}

/// Its sample is behind a pipe into which nobody writes.
class BlockedData : public torch::data::Dataset<BlockedData, int> {
 public:
  explicit BlockedData(const Group& group) : group_(group) {}
  int get(std::size_t index) override {
    if (group_->rank() == 1 && index > 3) until_broken(*group_);
    return static_cast<int>(index);
  }
  torch::optional<std::size_t> size() const override { return 8; }

 private:
  Group group_;
};

TEST(Hang, OfARankThatIsLoadingDataSaysSo) {
  const auto errors = errors_of(2, [](const Group& group) {
    auto loader = make_data_loader(
        BlockedData(group), DistributedSampler(8, {.num_replicas = 2, .rank = group->rank(), .shuffle = false}), 1);
    for ([[maybe_unused]] const auto& batch : *loader) reduce(*group);
  });
  expect_on_all_ranks(
      errors, {"timed out after 2.0 s: rank 1 is loading data since ", "look at what its data loader waits for"});
}

TEST(Hang, OfALoopThatEndedEarlierSaysThatTheBatchesWereFewer) {
  const auto errors = errors_of(3, [](const Group& group) {
    const auto size = group->rank() == 2 ? 6 : 9;  // batches: 2 and 3
    auto loader = make_data_loader(torch::data::datasets::TensorDataset(at::ones({size, 1})),
                                   DistributedSampler(static_cast<std::size_t>(size),
                                                      {.num_replicas = 3, .rank = group->rank(), .shuffle = false}),
                                   1);
    for ([[maybe_unused]] const auto& batch : *loader) reduce(*group);
    if (group->rank() == 2) until_broken(*group);
  });
  expect_on_all_ranks(errors,
                      {"all_reduce #3: timed out after 2.0 s: rank 2 has had its last batch and left its loop",
                       "give all ranks as many batches (a DistributedSampler that pads does), or train under join()",
                       "now not in a collective, after its last batch"});
}

TEST(Hang, OfACallThatOnlyOneRankMakesSaysSo) {
  const auto errors = errors_of(3, [](const Group& group) {
    for (int step = 0; step < 3; ++step) {
      group->mark_step(step);
      if (group->rank() == 0 && step == 1) reduce(*group);
    }
    until_broken(*group);
  });
  expect_on_all_ranks(errors,
                      {"all_reduce #1, step 1: timed out after 2.0 s: only one rank has made this call; ranks 1, 2",
                       "take it out of the `if (rank == 0)`"});
}

TEST(Hang, OfARankWithoutAnyCallSaysThatItHasMadeNone) {
  const auto errors = errors_of(2, [](const Group& group) {
    if (group->rank() == 0) return until_broken(*group);
    reduce(*group);
  });
  expect_on_all_ranks(errors, {"all_reduce #1: timed out after 2.0 s: rank 0 has made no call in this group yet",
                               "all ranks have to make the call"});
}

// Two groups, in the other order on one of the ranks.
TEST(Hang, OfCallsOfTwoGroupsInOtherOrdersNamesTheOtherGroup) {
  const auto errors = errors_of(
      3,
      [](const Group& group) {
        const auto part = group->new_group({1, 2}, {.timeout = 60s});
        reduce(*group);
        if (group->rank() != 2) return reduce(*group);
        reduce(*part);
      },
      3s);
  expect_on_all_ranks({errors[0], errors[1]},
                      {"timed out after 3.0 s: rank 2 waits in all_reduce #1 (8 floats) of the group of ranks 1, 2",
                       "make all calls in one order on all ranks, those of several groups and messages"});
}

TEST(Hang, OfAMessageNamesTheRankThatDoesNotTakePart) {
  const auto errors = errors_of(3, [](const Group& group) {
    reduce(*group);
    auto tensor = at::ones({8});
    if (group->rank() == 2) group->recv(tensor, 1);
    until_broken(*group);
  });
  expect_on_all_ranks(errors, {"recv from rank 1, message 1: timed out after 2.0 s: rank 1 is in code of its own"});
}

TEST(Hang, OfTwoRanksThatBothSendFirstNamesTheirMessages) {
  const auto errors = errors_of(2, [](const Group& group) {
    auto tensor = at::ones({8});
    group->send(tensor, 1 - group->rank());
  });
  expect_on_all_ranks(errors, {"timed out after 2.0 s: rank ", " waits in send to rank ",
                               "make the same calls on all ranks, in one order"});
}

TEST(Hang, OfAMonitoredBarrierHasTheSameReport) {
  const auto errors = errors_of(3, [](const Group& group) {
    group->mark_step(4);
    if (group->rank() != 2) group->monitored_barrier();
    until_broken(*group);
  });
  expect_on_all_ranks(errors,
                      {"monitored_barrier #1, step 4: rank 2 did not come within 2.0 s: rank 2 has made no call",
                       "\n  rank 2: completed no call yet, now not in a collective"});
}

TEST(Hang, EndsEachRanksProgramWithAnExitCodeThatBlamesNobody) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    std::_Exit(ddp::run([&] {
      ProcessGroupOptions options;
      options.environment = environment;
      options.timeout = 1s;
      const auto group = init_process_group(options);
      if (group->rank() == 1) until_broken(*group);
      reduce(*group);
    }));
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 75) << outcome.ending() << '\n' << outcome.output;
}

// The pause is what is tested.
TEST(Hang, ThatIsNoneIsNeitherWarnedOfNorNamed) {
  ::setenv("DDP_WARN_AFTER", "30", 1);
  const auto outputs = errors_of(
      2,
      [](const Group& group) {
        if (group->rank() == 1) std::this_thread::sleep_for(4s);
        reduce(*group);
        group->shutdown();
      },
      20s);
  ::unsetenv("DDP_WARN_AFTER");
  for (const auto& output : outputs) EXPECT_EQ(output.find("warn rank"), std::string::npos) << output;
}

/// Waits for a line of the log of this process that has `text`.
class Heard {
 public:
  Heard() : saved_(::dup(STDERR_FILENO)) {
    if (::pipe(ends_) != 0) throw std::runtime_error("pipe");
    ::dup2(ends_[1], STDERR_FILENO);
  }
  ~Heard() {
    ::dup2(saved_, STDERR_FILENO);
    for (const int end : {saved_, ends_[0], ends_[1]}) ::close(end);
  }
  Heard(const Heard&) = delete;
  Heard& operator=(const Heard&) = delete;

  /// All that was written until then; at the limit, too.
  std::string until(const std::string& text, std::chrono::milliseconds limit) {
    const auto end = Clock::now() + limit;
    while (heard_.find(text) == std::string::npos) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
      pollfd ready{ends_[0], POLLIN, 0};
      char buffer[4096];
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) != 1) break;
      heard_.append(buffer, static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends_[0], buffer, sizeof buffer))));
    }
    return heard_;
  }

 private:
  int saved_;
  int ends_[2];
  std::string heard_;
};

void expect_success(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << ": " << outcome.ending() << '\n' << outcome.output;
}

// The rank of the launcher's is not asked: who waits says it. It goes on once it was named, and so does the job.
void expect_a_stopped_rank_to_be_named(int world, int stopped, int speaker) {
  expect_success(observe_ranks(world, [&](const Environment& environment) {
    ProcessGroupOptions options;
    options.environment = environment;
    options.timeout = 60s;
    const auto group = init_process_group(options);
    const auto pids = group->all_gather_bytes(std::to_string(::getpid()));
    if (group->rank() == stopped) ::raise(SIGSTOP);
    if (group->rank() != speaker) return reduce(*group);
    Heard heard;
    std::thread waits([&] { reduce(*group); });
    const auto& pid = pids[static_cast<std::size_t>(stopped)];
    const auto name = "rank " + std::to_string(stopped);
    EXPECT_TRUE(contains(heard.until("kill -CONT", 5s), "has lasted "));
    EXPECT_TRUE(contains(heard.until("kill -CONT", 0s), name + " gives no answer: process " + pid));
    EXPECT_TRUE(contains(heard.until("kill -CONT", 0s), "is stopped (SIGSTOP or Ctrl-Z)"));
    ::kill(std::stoi(pid), SIGCONT);
    waits.join();
  }));
}

TEST(Hang, OfAStoppedRankIsNamedWithinFiveSeconds) { expect_a_stopped_rank_to_be_named(2, 1, 0); }

TEST(Hang, OfAStoppedRankZeroIsNamedWithinFiveSecondsToo) { expect_a_stopped_rank_to_be_named(3, 0, 1); }

void expect_a_stopped_rank_in_the_timeout(int world, int stopped) {
  const Gate given_up;
  expect_success(observe_ranks(world, [&](const Environment& environment) {
    ProcessGroupOptions options;
    options.environment = environment;
    options.timeout = 1s;
    const auto group = init_process_group(options);
    const auto pids = group->all_gather_bytes(std::to_string(::getpid()));
    if (group->rank() == stopped) {
      ::raise(SIGSTOP);
      return;
    }
    const auto pid = pids[static_cast<std::size_t>(stopped)];
    try {
      reduce(*group);
      ADD_FAILURE() << "no exception";
    } catch (const TimeoutError& error) {
      EXPECT_TRUE(contains(error.what(), "timed out after 1.0 s: rank " + std::to_string(stopped) +
                                             " gives no answer: process " + pid + " on "));
      EXPECT_TRUE(contains(error.what(), "is stopped (SIGSTOP or Ctrl-Z); let its process go on"));
      EXPECT_EQ(count(error.what(), "gives no answer"), 1) << error.what();
    }
    if (group->rank() != 1 - stopped) return given_up.open();
    for (int other = 2; other < world; ++other) given_up.pass();
    ::kill(std::stoi(pid), SIGCONT);
  }));
}

TEST(Hang, OfAStoppedRankIsNamedInTheTimeoutOfTheOthers) { expect_a_stopped_rank_in_the_timeout(2, 1); }

TEST(Hang, OfAStoppedRankZeroIsNamedInTheTimeoutWithoutAccusingThoseThatItKeepsFromAnswering) {
  expect_a_stopped_rank_in_the_timeout(3, 0);
}

// The time is what is tested.
TEST(Hang, IsWarnedOfByOneOfTheRanksThatWait) {
  ::setenv("DDP_WARN_AFTER", "2.4", 1);
  const auto outputs = errors_of(
      3,
      [](const Group& group) {
        ddp::step(2);
        const Phase phase("validation");
        if (group->rank() == 1) std::this_thread::sleep_for(4500ms);
        reduce(*group);
      },
      60s);
  ::unsetenv("DDP_WARN_AFTER");
  const auto all = outputs[0] + outputs[1] + outputs[2];
  EXPECT_EQ(count(all, ": all_reduce #1, step 2 has lasted "), 1) << all;
  EXPECT_EQ(count(all, "\"validation\" in step 2 since "), 1) << all;
  EXPECT_TRUE(contains(all, ":   rank 1: completed no call yet, now not in a collective in step 2, in \"validation\""));
  EXPECT_TRUE(contains(all, "Hang_IsWarnedOfByOneOfTheRanksThatWait_Test"));
}

TEST(Hang, IsWarnedOfAgainOnceItHasLastedTwiceAsLong) {
  ::setenv("DDP_WARN_AFTER", "1", 1);
  const Gate is_heard;
  expect_success(observe_ranks(2, [&](const Environment& environment) {
    ProcessGroupOptions options;
    options.environment = environment;
    const auto group = init_process_group(options);
    if (group->rank() == 1) {
      is_heard.pass();
      return reduce(*group);
    }
    Heard heard;
    std::thread waits([&] { reduce(*group); });
    EXPECT_TRUE(contains(heard.until("has lasted 2.", 5s), "has lasted "));
    EXPECT_TRUE(contains(heard.until("has lasted 3.", 5s), "has lasted 3."));
    is_heard.open();
    waits.join();
  }));
  ::unsetenv("DDP_WARN_AFTER");
}

}  // namespace
}  // namespace ddp::testing
