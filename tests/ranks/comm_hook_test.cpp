// Other ways of averaging a bucket than a plain all-reduce.

#include "ddp/comm_hook.hpp"

#include <gtest/gtest.h>

#include <set>

#include "ddp/distributed_data_parallel.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

constexpr double kTiny = 0.0001;  // MiB: every layer has a bucket of its own

DistributedDataParallelOptions hooked(std::shared_ptr<CommHook> hook, double cap = kTiny) {
  return {
      .bucket_cap_mb = cap, .first_bucket_cap_mb = cap, .overlap_communication = true, .comm_hook = std::move(hook)};
}

// One step of `net` with `hook` (none: the plain mean); its gradients.
std::vector<at::Tensor> gradients_with(const std::shared_ptr<CommHook>& hook, const Group& group, torch::Dtype dtype) {
  Perceptron net(7, dtype);
  DistributedDataParallel model(net, group, hooked(hook));
  const auto mine = Batch::of_step(0, 12, dtype).of_rank(group->rank(), group->size());
  squared_error(model(mine.input), mine.target).backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

// A rank rounds its share and the sum is rounded once more: each by at most half a unit of its last place, `unit`, of
// the largest share. `tiny` is half the smallest number of the dtype that compression uses.
void expect_rounded(ProcessGroup& group, const std::vector<at::Tensor>& rounded, const std::vector<at::Tensor>& exact,
                    double unit, double tiny) {
  bool differs = false;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(rounded[i].dtype(), exact[i].dtype());
    const auto largest = exact[i].abs().max().item<double>();
    const auto error = (rounded[i] - exact[i]).abs().max().item<double>();
    EXPECT_LE(error, (group.size() + 1) * (unit * largest * group.size() + tiny)) << i;
    differs = differs || error > 0;
    EXPECT_TRUE(same_on_all_ranks(group, rounded[i])) << i;
  }
  EXPECT_TRUE(differs) << "nothing was compressed";
}

class CommHookOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CommHookOnRanks, ::testing::Values(2, 3),
                         [](const auto& world) { return "Of" + std::to_string(world.param); });

TEST_P(CommHookOnRanks, CompressesToHalfWithinItsPrecision) {
  run_ranks(GetParam(), [](const Group& group) {
    for (const auto dtype : {torch::kFloat, torch::kDouble})
      expect_rounded(*group, gradients_with(fp16_compression(), group, dtype), gradients_with(nullptr, group, dtype),
                     0x1p-11, 0x1p-25);
  });
}

TEST_P(CommHookOnRanks, CompressesToBfloat16WithinItsPrecision) {
  run_ranks(GetParam(), [](const Group& group) {
    for (const auto dtype : {torch::kFloat, torch::kDouble})
      expect_rounded(*group, gradients_with(bf16_compression(), group, dtype), gradients_with(nullptr, group, dtype),
                     0x1p-8, 0);
  });
}

TEST(CommHook, KeepsDtypesInMixedModules) {
  struct MixedImpl : torch::nn::Module {
    MixedImpl() {
      for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kComplexFloat,
                               torch::kComplexDouble, torch::kFloat})
        weights.push_back(register_parameter("w" + std::to_string(weights.size()), torch::ones({5}, dtype)));
    }
    torch::Tensor forward(double x) {
      auto sum = torch::zeros({}, torch::kDouble);
      for (const auto& w : weights) {
        const auto part = w.is_complex() ? torch::real(w * c10::complex<double>(x, 2 * x)) : w * x;
        sum = sum + part.sum().to(torch::kDouble);
      }
      return sum;
    }
    std::vector<torch::Tensor> weights;
  };
  run_ranks(2, [](const Group& group) {
    for (const auto& hook : {fp16_compression(), bf16_compression()}) {
      const auto net = std::make_shared<MixedImpl>();
      DistributedDataParallel model(net, group, hooked(hook, 1e-5));
      model(group->rank() == 0 ? 1.0 : 4.0).backward();
      for (const auto& entry : net->named_parameters()) {
        const auto& w = entry.value();
        const auto expected = w.is_complex() ? torch::full({5}, c10::complex<double>(2.5, -5), w.options())
                                             : torch::full({5}, 2.5, w.options());
        EXPECT_TRUE(torch::equal(w.grad(), expected)) << hook->name() << entry.key() << w.grad();
      }
    }
  });
}

// Sends the negative, and keeps account.
struct NegatingHook : CommHook {
  std::string name() const override { return "negating"; }
  std::function<void()> launch(ProcessGroup& group, GradBucket bucket) override {
    launched.push_back(bucket.index);
    labels.insert(bucket.label);
    elements += bucket.gradients.numel();
    auto gradients = bucket.gradients.neg();
    const auto work = group.all_reduce_async(gradients);
    return [this, work, gradients, mean = bucket.gradients, index = bucket.index] {
      completed.push_back(index);
      work.wait();
      mean.copy_(gradients.neg());
    };
  }
  std::vector<std::size_t> launched, completed;
  std::set<std::string> labels;
  std::int64_t elements = 0;
};

TEST_P(CommHookOnRanks, OfTheUsersOwnMeetsEachBucketOnceAndInOrder) {
  run_ranks(GetParam(), [](const Group& group) {
    for (const bool views : {true, false}) {
      const auto hook = std::make_shared<NegatingHook>();
      auto options = hooked(hook);
      options.gradient_as_bucket_view = views;
      Perceptron net, reference;
      DistributedDataParallel model(net, group, options);
      const auto optimizer = adamw(net->parameters()), reference_optimizer = adamw(reference->parameters());
      for (int step = 0; step < 4; ++step) {
        hook->launched.clear();
        hook->completed.clear();
        hook->elements = 0;
        optimizer->zero_grad();
        reference_optimizer->zero_grad();
        const auto batch = Batch::of_step(step, 12);
        const auto mine = batch.of_rank(group->rank(), group->size());
        squared_error(model(mine.input), mine.target).backward();
        squared_error(reference(batch.input), batch.target).backward();
        optimizer->step();
        reference_optimizer->step();
        std::vector<std::size_t> in_order(model->reducer_stats().buckets.size());
        for (std::size_t i = 0; i < in_order.size(); ++i) in_order[i] = i;
        EXPECT_GT(in_order.size(), 2u);
        EXPECT_EQ(hook->launched, in_order);
        EXPECT_EQ(hook->completed, in_order);
        std::int64_t elements = 0;
        for (const auto& parameter : net->parameters()) elements += parameter.numel();
        EXPECT_EQ(hook->elements, elements) << "gradients, and nothing else";
      }
      EXPECT_GE(hook->labels.size(), hook->launched.size());
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_TRUE(close(net->parameters()[i], reference->parameters()[i], 1e-10));
        EXPECT_TRUE(same_on_all_ranks(*group, net->parameters()[i]));
      }
    }
  });
}

// Throws on rank 1 in its second step's second bucket.
struct FailingHook : NegatingHook {
  FailingHook(int rank, bool in_launch) : fails_(rank == 1), in_launch_(in_launch) {}
  std::function<void()> launch(ProcessGroup& group, GradBucket bucket) override {
    const bool fails = fails_ && bucket.index == 1 && launched.size() > 4;
    if (fails && in_launch_) throw std::runtime_error("no room for the copy");
    auto complete = NegatingHook::launch(group, bucket);
    if (!fails) return complete;
    return [] { throw std::runtime_error("no room for the copy"); };
  }

 private:
  bool fails_;
  bool in_launch_;
};

TEST(CommHook, ThatThrowsBreaksTheWrapperInWordsOnAllRanks) {
  for (const bool in_launch : {true, false})
    run_ranks(3, [in_launch](const Group& group) {
      Perceptron net;
      DistributedDataParallel model(net, group, hooked(std::make_shared<FailingHook>(group->rank(), in_launch)));
      const auto x = torch::ones({2, 8}, torch::kDouble);
      const auto train = [&](int steps) {
        for (int step = 0; step < steps; ++step) model(x).sum().backward();
      };
      // Its second step; and again: the wrapper is broken. The others may end that step: rank 1 has entered its calls.
      for (const int steps : {2, 1}) {
        if (group->rank() == 1) {
          try {
            train(steps);
            ADD_FAILURE() << "no exception";
          } catch (const std::runtime_error& error) {
            EXPECT_TRUE(contains(error.what(), "no room for the copy"));
          }
        } else {
          try {
            train(steps + 1);
            ADD_FAILURE() << "no exception";
          } catch (const PeerLostError& error) {
            EXPECT_EQ(error.peer(), 1);
            EXPECT_TRUE(contains(error.what(), "rank 1 failed: no room for the copy"));
          }
        }
      }
      EXPECT_THROW(group->barrier(), CommError);
    });
}

TEST(CommHook, ThatDiffersBetweenRanksIsAModelMismatch) {
  run_ranks(3, [](const Group& group) {
    const auto hook = group->rank() == 2 ? bf16_compression() : group->rank() == 1 ? fp16_compression() : nullptr;
    try {
      DistributedDataParallel model(Perceptron(), group, hooked(hook));
      ADD_FAILURE() << "no exception";
    } catch (const ModelMismatchError& error) {
      EXPECT_TRUE(contains(error.what(), "comm_hook fp16 compression"));
    }
  });
}

TEST(CommHook, WithoutCommunicationLeavesEachRankItsOwnShareAndTellsFaultsNonetheless) {
  struct NetImpl : torch::nn::Module {
    torch::Tensor first = register_parameter("first", torch::ones({2}));
    torch::Tensor last = register_parameter("last", torch::ones({2}));
    torch::Tensor forward(torch::Tensor x, bool all) { return all ? x * first * last : x * first; }
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<NetImpl>();
    DistributedDataParallel model(net, group, hooked(no_communication(), 1e-6));
    const auto x = torch::full({2}, 2.0 + 4.0 * group->rank());
    model(x, true).sum().backward();
    EXPECT_TRUE(torch::equal(net->first.grad(), x / 2));
    EXPECT_TRUE(torch::equal(net->last.grad(), x / 2));
    try {
      model(x, group->rank() == 0).sum().backward();
      ADD_FAILURE() << "no exception";
    } catch (const GradientError& error) {
      EXPECT_TRUE(contains(error.what(), "on rank 1: no gradient for last"));
    }
  });
}

}  // namespace
}  // namespace ddp
