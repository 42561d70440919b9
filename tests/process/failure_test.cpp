// What the other ranks see, and how soon, when one throws, dies, hangs or never comes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "ddp/process_group.hpp"
#include "ddp/run.hpp"
#include "support/ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

constexpr int kLostPeer = 76;

Group join(const Environment& environment, std::chrono::milliseconds timeout = 300s) {
  ProcessGroupOptions options;
  options.environment = environment;
  options.timeout = timeout;
  return init_process_group(options);
}

void reduce_once(ProcessGroup& group) {
  auto tensor = at::ones({64});
  group.all_reduce(tensor);
}

// A program as a user writes it: main() { return ddp::run(body); }
void as_program(const std::function<void()>& body) { std::exit(run(body)); }

RanksOptions with_exit_handlers() {
  RanksOptions options;
  options.run_exit_handlers = true;
  return options;
}

::testing::AssertionResult says(const Outcome& outcome, const std::string& text) {
  if (outcome.output.find(text) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "rank " << outcome.rank << " (" << outcome.ending() << ") does not say \""
                                       << text << "\" but:\n"
                                       << outcome.output;
}

// Trains until rank `culprit` does `deed` in step `when`.
std::vector<Outcome> train(int world, int culprit, int when, const std::function<void()>& deed) {
  return observe_ranks(
      world,
      [=](const Environment& environment) {
        as_program([&] {
          const auto group = join(environment);
          for (int step = 0; step < 1000; ++step) {
            group->mark_step(step);
            if (group->rank() == culprit && step == when) deed();
            reduce_once(*group);
          }
        });
      },
      with_exit_handlers());
}

void expect_others_end_within(const std::vector<Outcome>& outcomes, int culprit, std::chrono::milliseconds limit,
                              const std::string& text) {
  const auto& first = outcomes[static_cast<std::size_t>(culprit)];
  for (const auto& outcome : outcomes) {
    if (outcome.rank == culprit) continue;
    EXPECT_EQ(outcome.exit_code, kLostPeer) << outcome.ending() << '\n' << outcome.output;
    EXPECT_TRUE(says(outcome, text));
    EXPECT_TRUE(says(outcome, "all_reduce #"));
    EXPECT_LT(outcome.ended - first.ended, limit);
  }
}

TEST(Failure, AnExceptionOnOneRankEndsTheOthersWithItsText) {  // fault R22
  const auto outcomes = train(3, 1, 3, [] { throw std::runtime_error("no memory for the batch"); });
  EXPECT_EQ(outcomes[1].exit_code, 1);
  EXPECT_TRUE(says(outcomes[1], "rank 1 of 3: no memory for the batch"));
  expect_others_end_within(outcomes, 1, 5s, "rank 1 failed: no memory for the batch");
}

TEST(Failure, AnExceptionOnRankZeroReachesTheOthersToo) {
  const auto outcomes = train(3, 0, 3, [] { throw std::runtime_error("no memory for the batch"); });
  EXPECT_EQ(outcomes[0].exit_code, 1);
  expect_others_end_within(outcomes, 0, 5s, "rank 0 failed: no memory for the batch");
}

TEST(Failure, AnExceptionThatNobodyCatchesIsPublishedToo) {
  const auto outcomes = train(3, 1, 3, [] { std::thread([] { throw std::runtime_error("a thread's own"); }).join(); });
  EXPECT_EQ(outcomes[1].signal, SIGABRT) << outcomes[1].ending();
  expect_others_end_within(outcomes, 1, 5s, "rank 1 failed: a thread's own");
}

TEST(Failure, AnExceptionThatDestroysTheGroupAndIsHandledOutsideIsNoGoodbye) {
  const auto outcomes = observe_ranks(
      2,
      [](const Environment& environment) {
        if (environment.rank == 0) {
          as_program([&] {
            const auto group = join(environment);
            reduce_once(*group);
            reduce_once(*group);
          });
        }
        try {
          const auto group = join(environment);
          reduce_once(*group);
          throw std::runtime_error("handled by the user");
        } catch (const std::exception&) {
        }
      },
      with_exit_handlers());
  EXPECT_EQ(outcomes[1].exit_code, 0);
  expect_others_end_within(outcomes, 1, 5s, "rank 1 failed: an exception destroyed its process group");
}

TEST(Failure, AKilledRankIsNamedWithinSeconds) {  // fault R68
  const auto outcomes = train(4, 2, 5, [] { ::kill(::getpid(), SIGKILL); });
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  expect_others_end_within(outcomes, 2, 3s, "rank 2 died");
}

TEST(Failure, AKilledRankZeroIsNamedWithinSeconds) {
  const auto outcomes = train(4, 0, 5, [] { ::kill(::getpid(), SIGKILL); });
  expect_others_end_within(outcomes, 0, 3s, "rank 0 died");
}

TEST(Failure, ARankThatLeavesEarlyIsNamedWithItsLastCall) {
  const auto outcomes = train(3, 1, 3, [] { std::exit(0); });
  EXPECT_EQ(outcomes[1].exit_code, 0) << outcomes[1].output;
  expect_others_end_within(outcomes, 1, 3s,
                           "all_reduce #4, step 3: rank 1 left the group after call #3, after 3 steps");
}

TEST(Failure, ACallIsNotDisturbedByARankThatLeavesAfterIt) {
  const auto outcomes = observe_ranks(
      3,
      [](const Environment& environment) {
        as_program([&] {
          const auto group = join(environment);
          for (int i = 0; i < 200; ++i) reduce_once(*group);
        });
      },
      with_exit_handlers());
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(Failure, FailBreaksTheGroupEverywhereAndEveryLaterCallSaysSo) {
  run_ranks(3, [](const Group& group) {
    reduce_once(*group);
    if (group->rank() == 2) group->fail("the data is bad");
    const auto text_of = [&](const std::function<void()>& call) -> std::string {
      try {
        call();
      } catch (const CommError& error) {
        EXPECT_EQ(dynamic_cast<const PeerLostError*>(&error) != nullptr, group->rank() != 2);
        return error.what();
      }
      return "no exception";
    };
    const std::string own = "this rank has failed: the data is bad", others = "rank 2 failed: the data is bad";
    const auto& expected = group->rank() == 2 ? own : others;
    for (int i = 0; i < 3; ++i) {
      const auto text = text_of([&] { reduce_once(*group); });
      EXPECT_NE(text.find(": " + expected), std::string::npos) << text;
    }
    EXPECT_NE(text_of([&] { group->check(); }).find(expected), std::string::npos);
  });
}

// The call that the others have given up still completes for the last rank to come if it comes before the news.
void expect_timeout_by_the_second_call(ProcessGroup& group) {
  EXPECT_THROW(
      {
        reduce_once(group);
        reduce_once(group);
      },
      TimeoutError);
}

// Ranks 1 and 3 stay away from a call until rank 0 has given up; fault R67.
TEST(Failure, ATimeoutNamesWhatEveryRankDidLast) {
  const Gate given_up;
  RanksOptions options;
  options.group_timeout = 1500ms;
  run_ranks(
      4,
      [&](const Group& group) {
        for (int step = 0; step < 3; ++step) {
          group->mark_step(step);
          reduce_once(*group);
        }
        if (group->rank() % 2 == 1) {
          given_up.pass();
          expect_timeout_by_the_second_call(*group);
          return;
        }
        group->mark_step(3);
        try {
          reduce_once(*group);
          ADD_FAILURE() << "no exception";
        } catch (const TimeoutError& error) {
          const std::string text = error.what();
          for (const std::string expected :
               {"all_reduce #4, step 3: timed out after 1.5 s: ranks 1, 3: each is in code of its own in step 2, its "
                "thread "
                "sleeps; see its stack below",
                "rank 0: last completed all_reduce #3 (64 floats) in step 2, now in all_reduce #4 (64 floats) in step "
                "3",
                "rank 1: last completed all_reduce #3 (64 floats) in step 2, now not in a collective",
                "rank 3: last completed all_reduce #3 (64 floats) in step 2, now not in a collective"})
            EXPECT_NE(text.find(expected), std::string::npos) << expected << "\nnot in\n" << text;
        }
        if (group->rank() == 0) given_up.open(2);
      },
      options);
}

TEST(Failure, AStoppedProcessGivesNoAnswerAndIsNamedSo) {
  RanksOptions options;
  options.group_timeout = 1s;
  run_ranks(
      2,
      [](const Group& group) {
        const auto pids = group->all_gather_bytes(std::to_string(::getpid()));
        if (group->rank() == 1) {
          ::raise(SIGSTOP);
          expect_timeout_by_the_second_call(*group);
          return;
        }
        try {
          reduce_once(*group);
          ADD_FAILURE() << "no exception";
        } catch (const TimeoutError& error) {
          EXPECT_NE(std::string(error.what()).find("rank 1: no answer"), std::string::npos) << error.what();
        }
        ::kill(std::stoi(pids[1]), SIGCONT);
      },
      options);
}

TEST(Failure, ACallMayHaveALongerTimeoutThanItsGroup) {
  RanksOptions options;
  options.group_timeout = 500ms;
  run_ranks(
      2,
      [](const Group& group) {
        if (group->rank() == 1) std::this_thread::sleep_for(1200ms);  // the time itself is what is tested
        auto tensor = at::ones({64});
        group->all_reduce(tensor, ReduceOp::sum, {.timeout = 20s});
        EXPECT_EQ(tensor.sum().item<float>(), 128);
      },
      options);
}

TEST(Failure, AWaitMayHaveATimeoutOfItsOwn) {
  const Gate given_up;
  run_ranks(2, [&](const Group& group) {
    if (group->rank() == 1) {
      given_up.pass();
      expect_timeout_by_the_second_call(*group);
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    auto tensor = at::ones({64});
    EXPECT_THROW(group->all_reduce_async(tensor, ReduceOp::sum, {.label = "end"}).wait(300ms), TimeoutError);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
    EXPECT_THROW(group->check(), TimeoutError);
    given_up.open();
  });
}

}  // namespace
}  // namespace ddp::testing
