// Ranks with different numbers of batches of which one fails, leaves or dies.

#include <gtest/gtest.h>

#include <csignal>

#include "base/exit_code.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/join.hpp"
#include "ddp/run.hpp"
#include "support/backward_errors.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

// One step of a wrapped perceptron that misses a layer's gradients if `misses`.
struct CarelessImpl : PerceptronImpl {
  torch::Tensor forward(torch::Tensor x, bool misses) {
    return misses ? torch::tanh(layers[0](x)) : PerceptronImpl::forward(x);
  }
};

TEST(Join, BringsAnActiveRanksErrorToRanksThatHaveLeft) {
  for (const bool by_all : {true, false})
    run_ranks(3, [by_all](const Group& group) {
      const auto net = std::make_shared<CarelessImpl>();
      DistributedDataParallel model(net, group);
      const auto x = torch::full({2, 8}, 1.0 + group->rank(), torch::kDouble);
      {
        auto join = model->join({.divide_by_initial_world_size = by_all});
        if (group->rank() == 2) {
          model(x, false).sum().backward();
          EXPECT_TRUE(contains(gradient_error([&] { model(x, true).sum().backward(); }), "on rank 2: no gradient for"));
        } else {
          EXPECT_TRUE(contains(gradient_error([&] { join.finish([] {}); }), "on rank 2: no gradient for"));
        }
        EXPECT_FALSE(net->layers[3]->bias.grad().defined());
      }
      // All know it, so all can go on: as ordinary ranks.
      net->zero_grad();
      (model(x, false).sum() * (1 + group->rank())).backward();
      EXPECT_TRUE(close(net->layers[3]->bias.grad(), torch::full({4}, 4.0, torch::kDouble), 1e-12));
    });
}

TEST(Join, CanGoOnAfterAnErrorOfAnActiveRank) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<CarelessImpl>();
    DistributedDataParallel model(net, group);
    const auto x = torch::full({2, 8}, 1.0 + group->rank(), torch::kDouble);
    auto join = model->join();
    std::vector<at::Tensor> means;
    const auto step = [&] { means.push_back(net->layers[3]->bias.grad().clone()); };
    if (group->rank() == 1) {
      EXPECT_NE(gradient_error([&] { model(x, true).sum().backward(); }), "no GradientError");
      model(x, false).sum().backward();
      step();
    } else {
      EXPECT_NE(gradient_error([&] { join.finish(step); }), "no GradientError");
    }
    join.finish(step);
    ASSERT_EQ(means.size(), 1u);
    EXPECT_TRUE(torch::equal(means[0], torch::full({4}, 1.0, torch::kDouble)));
    EXPECT_FALSE(net->layers[3]->bias.grad().defined());
  });
}

struct FusedImpl : torch::nn::Module {
  FusedImpl() { to(torch::kDouble); }
  torch::Tensor forward(torch::Tensor x, bool blows) { return last(Fuse::apply(norm(first(x)), blows)); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 3));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(3, 3));
};

TEST(Join, TellsActiveRanksOfTheBackwardInWhichALeavingRankFailed) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<FusedImpl>();
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
    const auto x = torch::randn({4, 3}, torch::kDouble);
    auto join = model->join();
    std::vector<at::Tensor> means;
    const auto step = [&] { means.push_back(net->last->bias.grad().clone()); };
    if (group->rank() == 0) {
      EXPECT_THROW(model(x, true).sum().backward(), std::runtime_error);  // swallowed: the loop is over
    } else {
      EXPECT_TRUE(contains(gradient_error([&] { model(x, false).sum().backward(); }), "on rank 0: its backward()"));
      model(x, false).sum().backward();
      step();
    }
    join.finish(step);
    ASSERT_EQ(means.size(), 1u);
    EXPECT_TRUE(torch::equal(means[0], torch::full({3}, 2.0, torch::kDouble)));
    EXPECT_TRUE(same_on_all_ranks(*group, net->norm->running_mean));
  });
}

TEST(Join, ThatAnExceptionDestroysCommunicatesNothing) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<BatchNormedImpl>();
    DistributedDataParallel model(net, group);
    const auto x = torch::full({2, 8}, 1.0 + group->rank(), torch::kDouble);
    const auto loop = [&](auto&& end) {
      const auto join = model->join();
      end();
    };
    if (group->rank() == 0) {
      EXPECT_THROW(loop([] { throw std::runtime_error("no more data"); }), std::runtime_error);
    }
    model(x).sum().backward();  // would hang, or meet another call, if rank 0 were a call ahead
    EXPECT_TRUE(same_on_all_ranks(*group, net->last->weight.grad()));
    EXPECT_TRUE(torch::equal(net->last->bias.grad(), torch::full({4}, 2.0, torch::kDouble)));
  });
}

TEST(Join, NamesARankThatIsKilledWhileOthersHaveLeft) {
  const auto outcomes = observe_ranks(3, [](const Environment& environment) {
    const auto group = init_process_group({.timeout = 5min, .environment = environment});
    Perceptron net;
    DistributedDataParallel model(net, group);
    auto join = model->join();
    const auto x = torch::ones({2, 8}, torch::kDouble);
    try {
      for (int step = 0; step < 1 + 3 * group->rank(); ++step) {
        if (step == 2 && group->rank() == 1) ::raise(SIGKILL);
        model(x).sum().backward();
      }
      join.finish();
      ADD_FAILURE() << "no exception";
    } catch (const PeerLostError& error) {
      EXPECT_EQ(error.peer(), 1) << error.what();
    }
  });
  for (const auto& outcome : outcomes) {
    if (outcome.rank == 1)
      EXPECT_EQ(outcome.signal, SIGKILL) << outcome.output;
    else
      EXPECT_TRUE(outcome.succeeded()) << outcome.rank << ": " << outcome.output;
  }
}

TEST(Join, LeftOutIsAnErrorThatSaysWhichRankHasLeftAfterWhichStep) {  // R38, R67
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = observe_ranks(3, [](const Environment& environment) {
    const int code = run([&] {
      const auto group = init_process_group({.timeout = 5min, .environment = environment});
      DistributedDataParallel model(Perceptron(), group);
      for (int step = 0; step < (group->rank() == 1 ? 3 : 5); ++step)
        model(torch::ones({2, 8}, torch::kDouble)).sum().backward();
    });
    EXPECT_EQ(code, environment.rank == 1 ? 0 : kLostPeerExitCode);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.succeeded()) << outcome.rank << ": " << outcome.output;
    if (outcome.rank == 1) continue;
    EXPECT_TRUE(contains(outcome.output, "rank 1 left the group after call #"));
    EXPECT_TRUE(contains(outcome.output, "after 3 steps"));
    EXPECT_TRUE(contains(outcome.output, "unequal numbers of batches"));
  }
}

}  // namespace
}  // namespace ddp
