// One rank wants to stop, and all of them know it after the same step. What is agreed stays so for the life of a
// process: each case has ranks of its own.

#include "ddp/stop.hpp"

#include <gtest/gtest.h>
#include <sys/time.h>

#include <functional>
#include <random>
#include <vector>

#include "ddp/comm_hook.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/join.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Route = std::vector<int>;
using Model = DistributedDataParallel<RoutesImpl>;

constexpr int kWorld = 3;

at::Tensor loss_of(Model& model, int rank, int step, const Route& route = {0, 1, 2}) {
  return model(Turn{rank, step, 0}.input(), route).pow(2).mean();
}

// Collective. The step after which this rank stops, the same on all ranks; `most` where it never does.
int last_step(ProcessGroup& group, int most, const std::function<void(int step)>& train) {
  int step = 0;
  do {
    train(++step);
  } while (!stop_requested() && step < most);
  EXPECT_TRUE(same_on_all_ranks(group, torch::full({1}, step)));
  return step;
}

// Each rank trains with a route of its own; in step 3 rank 1 asks for the stop while its forward runs.
void expect_stop_after_step_three(const DistributedDataParallelOptions& options, const std::vector<Route>& routes) {
  run_ranks(kWorld, [&](const Group& group) {
    Model model(std::make_shared<RoutesImpl>(), group, options);
    const auto& route = routes[static_cast<std::size_t>(group->rank()) % routes.size()];
    EXPECT_EQ(last_step(*group, 10,
                        [&](int step) {
                          const auto loss = loss_of(model, group->rank(), step, route);
                          if (group->rank() == 1 && step == 3) request_stop();
                          loss.backward();
                        }),
              3);
    EXPECT_EQ(last_step(*group, 5, [&](int step) { loss_of(model, group->rank(), step, route).backward(); }), 1)
        << "it does not stay true";
  });
}

TEST(StopRequested, IsTrueOnAllRanksAfterTheStepInWhichOneWantsIt) {
  for (auto options : {DistributedDataParallelOptions{}, kBucketEach}) {
    expect_stop_after_step_three(options, {{0, 1, 2}});
    options.gradient_as_bucket_view = false;
    options.overlap_communication = false;
    expect_stop_after_step_three(options, {{2, 1, 0}});
  }
}

TEST(StopRequested, TravelsBesideBucketsOfAHookAndWithStaticGraphAndUnusedParameters) {
  expect_stop_after_step_three({.comm_hook = fp16_compression()}, {{0, 1, 2}});
  expect_stop_after_step_three(with_bucket_each({.static_graph = true}), {{0, 1}, {}, {1, 1}});
  expect_stop_after_step_three(with_bucket_each({.find_unused_parameters = true}), {{0}, {1, 2}, {}});
}

TEST(StopRequested, TravelsWithBucketsOfHalfTypes) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf})
    run_ranks(kWorld, [dtype](const Group& group) {
      DistributedDataParallel model(Perceptron(7, dtype), group);
      EXPECT_EQ(last_step(*group, 5,
                          [&](int step) {
                            if (step == 2) request_stop();  // on all ranks, with the largest byte
                            const auto batch = Batch::of_step(step, 12, dtype).of_rank(group->rank(), kWorld);
                            squared_error(model(batch.input), batch.target).backward();
                          }),
                2);
    });
}

TEST(StopRequested, IsNotTrueBeforeTheBackwardHasEnded) {
  run_ranks(kWorld, [](const Group& group) {
    const auto net = std::make_shared<RoutesImpl>();
    Model model(net, group, kBucketEach);
    loss_of(model, group->rank(), 0).backward();
    request_stop();
    EXPECT_FALSE(stop_requested());
    bool inside = true;
    net->layers[0]->weight.register_hook([&](const at::Tensor&) { inside = stop_requested(); });
    loss_of(model, group->rank(), 1).backward();
    EXPECT_FALSE(inside);
    EXPECT_TRUE(stop_requested());
  });
}

// A timer's signal, wherever the rank is by then.
TEST(StopRequested, IsTrueOnAllRanksAfterTheSameStepWheneverTheSignalComes) {
  std::mt19937 random(1);
  for (int repetition = 0; repetition < 5; ++repetition) {
    const int rank = static_cast<int>(random() % kWorld);
    const auto microseconds = static_cast<suseconds_t>(1 + random() % 30000);
    run_ranks(kWorld, [=](const Group& group) {
      Model model(std::make_shared<RoutesImpl>(), group, kBucketEach);
      stop_on_signals({SIGALRM});
      const itimerval timer{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = microseconds}};
      if (group->rank() == rank) ::setitimer(ITIMER_REAL, &timer, nullptr);
      constexpr int kMost = 100000;
      EXPECT_LT(last_step(*group, kMost, [&](int step) { loss_of(model, group->rank(), step).backward(); }), kMost);
    });
  }
}

TEST(StopRequested, WaitsForTheBackwardThatIsReduced) {
  run_ranks(kWorld, [](const Group& group) {
    Model model(std::make_shared<RoutesImpl>(), group);
    if (group->rank() == 2) request_stop();
    {
      const auto guard = model->no_sync();
      for (int micro = 0; micro < 3; ++micro) {
        loss_of(model, group->rank(), micro).backward();
        EXPECT_FALSE(stop_requested());
      }
    }
    loss_of(model, group->rank(), 3).backward();
    EXPECT_TRUE(stop_requested());
  });
}

// Rank 0 has left its loop by then, rank 1 too or not.
TEST(StopRequested, ReachesRanksThatHaveLeftTheirLoopsAndThoseThatHaveNot) {
  for (const int wisher : {0, 2})
    run_ranks(kWorld, [wisher](const Group& group) {
      const int rank = group->rank(), batches = std::vector{2, 5, 9}[static_cast<std::size_t>(rank)];
      Model model(std::make_shared<RoutesImpl>(), group);
      int step = 0;
      {
        auto join = model->join();
        while (step < batches && !stop_requested()) {
          ++step;
          if (rank == wisher && rank == 2 && step == 4) request_stop();
          loss_of(model, rank, step).backward();
        }
        if (rank == wisher && rank == 0) request_stop();  // it takes part in step 3 then
        join.finish();
      }
      EXPECT_TRUE(stop_requested());
      EXPECT_EQ(step, rank == 0 ? 2 : wisher == 0 ? 3 : 4);
    });
}

TEST(StopRequested, OfTwoWrappersIsTheAnswerOfTheLastBackwardOfEither) {
  run_ranks(kWorld, [](const Group& group) {
    Model first(std::make_shared<RoutesImpl>(), group), second(std::make_shared<RoutesImpl>(), group);
    for (int step = 0; step < 3; ++step) {
      loss_of(first, group->rank(), step).backward();
      EXPECT_FALSE(stop_requested());
      if (group->rank() == 1 && step == 2) request_stop();
      loss_of(second, group->rank(), step).backward();
      EXPECT_EQ(stop_requested(), step == 2);
    }
  });
}

TEST(StopRequested, IsKnownThoughTheStepFailed) {
  run_ranks(kWorld, [](const Group& group) {
    Model model(std::make_shared<RoutesImpl>(), group);
    if (group->rank() == 2) request_stop();
    const Route route = group->rank() == 0 ? Route{0} : Route{0, 1, 2};
    EXPECT_THROW(loss_of(model, group->rank(), 0, route).backward(), GradientError);
    EXPECT_TRUE(stop_requested());
  });
}

TEST(StopRequested, OfAGroupNeedsNoWrapper) {
  run_ranks(kWorld, [](const Group& group) {
    EXPECT_FALSE(stop_requested(*group));
    if (group->rank() == 2) request_stop();
    EXPECT_FALSE(stop_requested());
    EXPECT_TRUE(stop_requested(*group));
    EXPECT_TRUE(stop_requested());
    EXPECT_TRUE(stop_requested(*group));
  });
}

TEST(StopRequested, OfSomeRanksConcernsThemAlone) {
  run_ranks(kWorld, [](const Group& group) {
    const auto part = group->new_group({0, 1});
    if (group->rank() == 1) request_stop();
    if (part) {
      Model model(std::make_shared<RoutesImpl>(), part);
      loss_of(model, group->rank(), 0).backward();
      EXPECT_TRUE(stop_requested(*part));
    }
    EXPECT_FALSE(stop_requested());
    EXPECT_TRUE(stop_requested(*group));
    EXPECT_TRUE(stop_requested());
  });
}

TEST(StopRequested, WithoutOtherRanksGoesByTheOwnWish) {
  run_ranks(2, [](const Group& group) {
    if (group->rank() == 1) request_stop();
    EXPECT_FALSE(stop_requested());
    group->shutdown();
    EXPECT_EQ(stop_requested(), group->rank() == 1);
  });
}

TEST(StopRequested, IsNotLostWithTheGroup) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    init_process_group({.environment = environment})->shutdown();
    if (environment.rank == 1) request_stop();
    const auto group = init_process_group({.environment = environment});
    EXPECT_FALSE(stop_requested());
    Model model(std::make_shared<RoutesImpl>(), group);
    loss_of(model, environment.rank, 0).backward();
    EXPECT_TRUE(stop_requested());
    group->shutdown();
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.ending() << outcome.output;
}

TEST(StopRequested, EndsTheWaitForRanksThatDoNotCome) {
  for (const int present : {0, 1}) {
    const auto outcomes = observe_ranks(2, [present](const Environment& environment) {
      if (environment.rank != present) return;
      request_stop();
      try {
        init_process_group({.environment = environment});
        ADD_FAILURE() << "it has met nobody";
      } catch (const CommError& error) {
        EXPECT_TRUE(contains(error.what(), "asked to stop by request_stop() before the ranks had met")) << error.what();
      }
    });
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.ending() << outcome.output;
  }
}

TEST(StopRequested, IsToldOnceByRankZeroWithWhoseWishItIs) {
  run_ranks(kWorld, [](const Group& group) {
    ::testing::internal::CaptureStderr();
    Model model(std::make_shared<RoutesImpl>(), group);
    stop_on_signals({SIGUSR1});
    if (group->rank() == 2) std::raise(SIGUSR1);
    if (group->rank() == 1) request_stop();
    for (int step = 0; step < 3; ++step) loss_of(model, group->rank(), step).backward();
    const auto said = ::testing::internal::GetCapturedStderr();
    const auto* const words = "all ranks are to stop after this step: SIGUSR1 on rank 2, request_stop() on rank 1";
    EXPECT_EQ(count(said, words), group->rank() == 0 ? 1 : 0) << said;
  });
}

TEST(StopRequested, WarnsARankWhoseWishReachesNobody) {
  run_ranks(2, [](const Group& group) {
    ::testing::internal::CaptureStderr();
    if (group->rank() == 1) request_stop();
    for (int i = 0; i < 300; ++i) EXPECT_FALSE(stop_requested());
    const auto said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(count(said, "this rank is to stop (request_stop()), which no other one knows"), group->rank()) << said;
  });
}

}  // namespace
}  // namespace ddp
