// What backward() leaves where it has thrown, on this rank or on another.

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "ddp/distributed_data_parallel.hpp"
#include "support/backward_errors.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

const DistributedDataParallelOptions kManyBuckets{.bucket_cap_mb = 0.0005, .first_bucket_cap_mb = 0.0001};

struct FusedImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 3));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(3, 3));
  torch::Tensor forward(torch::Tensor x, bool blows) { return second(Fuse::apply(first(x), blows)); }
};

TEST(VoidGradients, AreRightAgainAfterABackwardThatThrewOnEveryRank) {
  run_ranks(2, [](const Group& group) {
    torch::manual_seed(0);
    const auto net = std::make_shared<FusedImpl>();
    torch::manual_seed(0);
    FusedImpl reference;
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
    const auto x = torch::arange(12, torch::kFloat).view({4, 3});
    for (int round = 0; round < 3; ++round) {
      net->zero_grad();
      EXPECT_THROW(model(x, true).sum().backward(), std::runtime_error);
      net->zero_grad();
      reference.zero_grad();
      model(x.chunk(2)[group->rank()], false).mean().backward();
      reference.forward(x, false).mean().backward();
      expect_same_gradients(*net, reference, 1e-5);
    }
  });
}

TEST(VoidGradients, AreRightAfterASwallowedThrowThoughNoForwardCameBetween) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<FusedImpl>();
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
    const auto x = torch::full({1, 3}, 1.0 + group->rank());
    for (const bool under_no_sync : {true, false}) {
      auto bad = model(x, true).sum(), good = model(x, false).sum(), other = model(x, false).sum();
      {
        std::optional<NoSync> guard;
        if (under_no_sync) guard.emplace(model->no_sync());
        EXPECT_THROW(bad.backward(), std::runtime_error);
      }
      net->zero_grad();
      good.backward();
      EXPECT_TRUE(same_on_all_ranks(*group, net->first->weight.grad())) << under_no_sync;
      EXPECT_THROW(model(x, true).sum().backward(), std::runtime_error);
      net->zero_grad();
      std::thread([&] { other.backward(); }).join();
      EXPECT_TRUE(same_on_all_ranks(*group, net->first->weight.grad())) << under_no_sync;
    }
  });
}

TEST(VoidGradients, ThatAreVoidAreUndefinedSoThatAStepChangesNothing) {
  run_ranks(2, [](const Group& group) {
    for (const bool views : {true, false}) {
      Branch net;
      DistributedDataParallel model(net, group, {.gradient_as_bucket_view = views});
      const auto optimizer = sgd_with_momentum(net->parameters());
      EXPECT_NE(
          gradient_error([&] { model(torch::full({1, 3}, 1.0 + group->rank()), group->rank() == 0).sum().backward(); }),
          "no GradientError");
      optimizer->step();
      for (const auto& parameter : net->parameters()) {
        EXPECT_FALSE(parameter.grad().defined());
        EXPECT_TRUE(same_on_all_ranks(*group, parameter));
      }
    }
  });
}

TEST(VoidGradients, AccumulateUnderNoSyncAfterABackwardThatThrew) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<FusedImpl>();
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
    const auto x = torch::full({1, 3}, 1.0 + group->rank());
    EXPECT_THROW(model(x, true).sum().backward(), std::runtime_error);
    net->zero_grad();
    const auto guard = model->no_sync();
    model(x, false).sum().backward();
    EXPECT_FALSE(same_on_all_ranks(*group, net->first->weight.grad()));
  });
}

TEST(VoidGradients, AreRightWhereTheWrappersForwardIsRecomputedInBackward) {
  // The whole wrapped model is checkpointed: backward calls it again.
  using Recompute = std::function<at::Tensor(at::Tensor)>;
  struct Checkpointed : torch::autograd::Function<Checkpointed> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, const Recompute* model) {
      context->save_for_backward({x});
      context->saved_data["model"] = reinterpret_cast<std::int64_t>(model);
      const at::NoGradGuard no_grad;
      return (*model)(x);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      const auto x = context->get_saved_variables()[0].detach().requires_grad_();
      const auto* model = reinterpret_cast<const Recompute*>(context->saved_data["model"].toInt());
      const at::AutoGradMode with_graph(true);
      (*model)(x).backward(gradients[0]);
      return {x.grad(), at::Tensor()};
    }
  };
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group, kManyBuckets);
    const Recompute call = [&](at::Tensor x) { return model(x); };
    for (int step = 0; step < 2; ++step) {
      const auto batch = Batch::of_step(step, 4);
      const auto mine = batch.of_rank(group->rank(), 2);
      net->zero_grad();
      reference->zero_grad();
      squared_error(Checkpointed::apply(mine.input.clone().requires_grad_(), &call), mine.target).backward();
      squared_error(reference(batch.input), batch.target).backward();
      expect_same_gradients(*net, *reference);
    }
  });
}

TEST(VoidGradients, OfABackwardThatThrewOnOneRankAreVoidOnAllRanks) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<FusedImpl>();
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
    const auto x = torch::ones({2, 3});
    if (group->rank() == 1) {
      EXPECT_THROW(model(x, true).sum().backward(), std::runtime_error);  // swallowed
    } else {
      expect_contains(gradient_error([&] { model(x, false).sum().backward(); }), {"on rank 1", "exception"});
    }
    net->zero_grad();
    model(x, false).sum().backward();
    EXPECT_TRUE(same_on_all_ranks(*group, net->first->weight.grad()));
  });
}

}  // namespace
}  // namespace ddp
