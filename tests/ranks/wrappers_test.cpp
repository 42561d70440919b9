// Several wrappers: over two groups in two threads, over one group, one after the other.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "ddp/distributed_data_parallel.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Route = std::vector<int>;

// 10 steps of a wrapper of its own, equal to one process; no global random numbers, which threads would share.
void train_in_a_thread(const Group& group, int repetition) {
  const auto net = std::make_shared<RoutesImpl>(), twin = std::make_shared<RoutesImpl>();
  DistributedDataParallel model(net, group, kBucketEach);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i) twin->parameters()[i].copy_(net->parameters()[i]);
  }
  torch::optim::SGD optimizer(net->parameters(), 0.05), twin_optimizer(twin->parameters(), 0.05);
  for (int step = 0; step < 10; ++step) {
    const auto input = [&](int rank) {
      return torch::linspace(-1 + 0.1 * rank, 1 + 0.01 * (step + repetition), 12, torch::kDouble).view({3, 4});
    };
    optimizer.zero_grad();
    model(input(group->rank()), Route{0, 1, 2}).pow(2).mean().backward();
    optimizer.step();
    twin_optimizer.zero_grad();
    for (int rank = 0; rank < group->size(); ++rank)
      (twin->forward(input(rank), {0, 1, 2}).pow(2).mean() / group->size()).backward();
    twin_optimizer.step();
  }
  expect_equal_training(*group, *net, *twin, "after repetition " + std::to_string(repetition));
}

TEST(Wrappers, OverTwoGroupsTrainInTwoThreads) {  // R23: 200 repetitions
  run_ranks(2,
            [](const Group& group) {
              const auto other = group->new_group({0, 1});
              std::thread thread([&] {
                for (int repetition = 0; repetition < 100; ++repetition) train_in_a_thread(other, repetition);
              });
              for (int repetition = 0; repetition < 100; ++repetition) train_in_a_thread(group, repetition);
              thread.join();
            },
            {.limit = std::chrono::seconds(55)});
}

// Two wrappers over one group, of which each has buffers of another size.
struct Pair {
  struct NormedImpl : RoutesImpl {
    explicit NormedImpl(int features) : norm(register_module("norm", torch::nn::BatchNorm1d(features))) {
      norm->to(torch::kDouble);
      torch::nn::init::normal_(register_parameter("wide", torch::ones({4, features}, torch::kDouble)));
    }
    torch::Tensor forward(torch::Tensor x) {
      return norm(RoutesImpl::forward(x, {0, 1, 2}).mm(named_parameters()["wide"]));
    }
    torch::nn::BatchNorm1d norm;
  };
  explicit Pair(const Group& group, const DistributedDataParallelOptions& options = {})
      : a(std::make_shared<NormedImpl>(4), group, options), b(std::make_shared<NormedImpl>(9), group, options) {}
  DistributedDataParallel<NormedImpl> a, b;
};

TEST(Wrappers, OverOneGroupAverageInTheOrderThatAllRanksShare) {
  run_ranks(3, [](const Group& group) {
    for (const auto& options : {DistributedDataParallelOptions{}, kBucketEach}) {
      Pair pair(group, options);
      for (int step = 0; step < 3; ++step) {
        const auto input = Turn{group->rank(), step, 0}.input();
        pair.a->zero_grad();
        pair.b->zero_grad();
        pair.b(input).pow(3).sum().backward();
        auto loss = pair.a(input).pow(3).sum() + pair.b(pair.a(input)).pow(3).sum();
        loss.backward();
        for (const auto& model : {pair.a, pair.b})
          for (const auto& parameter : model->parameters()) EXPECT_TRUE(same_on_all_ranks(*group, parameter.grad()));
      }
    }
  });
}

TEST(Wrappers, OverOneGroupInOneBackwardEqualOneProcess) {
  run_ranks(2, [](const Group& group) {
    Routes a, b, twin_a, twin_b;
    DistributedDataParallel first(a, group, kBucketEach), second(b, group, kBucketEach);
    for (int step = 0; step < 3; ++step) {
      for (auto net : {a, b, twin_a, twin_b}) net->zero_grad();
      const auto input = [&](int rank) { return Turn{rank, step, 0}.input(); };
      second(first(input(group->rank()), Route{2, 1, 0}), Route{0, 1, 2}).pow(2).mean().backward();
      for (int rank = 0; rank < 2; ++rank)
        (twin_b(twin_a(input(rank), Route{2, 1, 0}), Route{0, 1, 2}).pow(2).mean() / 2).backward();
      expect_equal_training(*group, *a, *twin_a, "first");
      expect_equal_training(*group, *b, *twin_b, "second");
    }
  });
}

// What happens where the ranks use two wrappers in opposite order.
template <class Use>
void expect_opposite_order_is_found(const Use& use) {
  for (const int world : {2, 3})
    run_ranks(world, [&](const Group& group) {
      Pair pair(group);
      const bool is_last = group->rank() + 1 == group->size();
      const auto start = std::chrono::steady_clock::now();
      const auto text = text_of<CallMismatchError>(
          [&] { use(is_last ? pair.b : pair.a, is_last ? pair.a : pair.b, Turn{group->rank(), 0, 0}.input()); });
      EXPECT_TRUE(contains(text, "the ranks make different calls"));
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
      auto tensor = torch::ones({5});
      group->all_reduce(tensor);  // the group can go on
      EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(group->size()));
    });
}

TEST(Wrappers, OverOneGroupInOppositeOrderOfBackwardsAreAMismatchOnEveryRank) {
  expect_opposite_order_is_found([](auto& mine, auto& other, const at::Tensor& input) {
    mine->set_broadcast_buffers(false);
    other->set_broadcast_buffers(false);
    auto loss = mine(input).sum(), later = other(input).sum();
    loss.backward();
    later.backward();
  });
}

TEST(Wrappers, OverOneGroupInOppositeOrderOfForwardsAreAMismatchOnEveryRank) {
  expect_opposite_order_is_found([](auto& mine, auto& other, const at::Tensor& input) {
    auto loss = mine(input).sum(), later = other(input).sum();
    loss.backward();
    later.backward();
  });
}

TEST(Wrappers, OverOneGroupOfWhichOneRankIsInForwardAndOneInBackwardAreAMismatch) {
  run_ranks(2, [](const Group& group) {
    Pair pair(group);
    const auto input = Turn{group->rank(), 0, 0}.input();
    const auto loss = pair.a(input).sum();
    const auto text = text_of<CallMismatchError>([&] {
      if (group->rank() == 0)
        loss.backward();
      else
        pair.a(input);
    });
    EXPECT_TRUE(contains(text, "the ranks make different calls"));
  });
}

TEST(Wrappers, UnderNoSyncOnOneRankOnlyMakeRankZeroSaySo) {
  run_ranks(2, [](const Group& group) {
    ::testing::internal::CaptureStderr();
    Routes net;
    DistributedDataParallel model(net, group);
    const auto backward = [&](int step) {
      model(Turn{group->rank(), step, 0}.input(), Route{0, 1, 2}).sum().backward();
    };
    backward(0);
    if (group->rank() == 1) {
      const auto guard = model->no_sync();
      backward(1);
    }
    backward(2);
    const auto said = ::testing::internal::GetCapturedStderr();
    const auto* const words = "reduction 2 averages gradients that hold different numbers of backwards under no_sync";
    EXPECT_EQ(count(said, words), group->rank() == 0 ? 1 : 0) << said;
    EXPECT_EQ(count(said, "0 of rank 0, 1 of rank 1"), group->rank() == 0 ? 1 : 0) << said;
  });
}

TEST(Wrappers, OverOneGroupMakeRankZeroSayWhatThatCosts) {
  run_ranks(2, [](const Group& group) {
    const auto said_by = [&](const auto& act) {
      ::testing::internal::CaptureStderr();
      act();
      return ::testing::internal::GetCapturedStderr();
    };
    const auto* const words = "another wrapper of this group lives";
    EXPECT_EQ(count(said_by([&] { DistributedDataParallel alone(Routes(), group); }), words), 0);
    EXPECT_EQ(count(said_by([&] { Pair pair(group); }), words), group->rank() == 0 ? 1 : 0);
    EXPECT_EQ(count(said_by([&] { DistributedDataParallel alone(Routes(), group); }), words), 0);
  });
}

std::ptrdiff_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

TEST(Wrappers, GiveDescriptorsThreadsAndTheModuleBack) {  // R24
  run_ranks(2, [](const Group& group) {
    const auto live_and_die = [&](int number) {
      std::weak_ptr<RoutesImpl> watch;
      {
        const auto net = std::make_shared<RoutesImpl>();
        watch = net;
        DistributedDataParallel model(net, group, number % 2 == 0 ? kBucketEach : DistributedDataParallelOptions{});
        for (int step = 0; step < 2; ++step)
          model(Turn{group->rank(), step, 0}.input(), Route{2, 1, 0}).sum().backward();
      }
      EXPECT_TRUE(watch.expired());
    };
    for (int i = 0; i < 2; ++i) live_and_die(i);
    const auto descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    for (int i = 0; i < 50; ++i) live_and_die(i);
    // Fewer is no leak: the store's thread may close late what the ranks' meeting had opened.
    EXPECT_LE(entries_of("/proc/self/fd"), descriptors);
    EXPECT_LE(entries_of("/proc/self/task"), threads);
  });
}

// Only a reduction that runs beside the backward brings the mean: several live wrappers over a group take turns.
TEST(Wrappers, AverageWhileBackwardRunsThoughEarlierOnesHaveLived) {
  run_ranks(2, [](const Group& group) {
    {
      Pair pair(group);
      pair.a(Turn{group->rank(), 0, 0}.input()).sum().backward();
    }
    const auto net = std::make_shared<WaitsForMeanImpl>();
    DistributedDataParallel model(net, group, kBucketEach);
    EXPECT_TRUE(averages_while_backward_runs(model, *net, group->rank()));
  });
}

}  // namespace
}  // namespace ddp
