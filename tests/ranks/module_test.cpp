// Any module, any arguments, any result; buffers.

#include <gtest/gtest.h>

#include <sstream>

#include "ddp/distributed_data_parallel.hpp"
#include "support/ranks.hpp"
#include "support/training.hpp"

namespace ddp::testing {
struct Detections {
  at::Tensor boxes, scores;
};
}  // namespace ddp::testing

template <>
struct ddp::TensorVisitor<ddp::testing::Detections> {
  template <class F>
  static void visit(const ddp::testing::Detections& value, F& f) {
    ddp::visit_tensors(value.boxes, f);
    ddp::visit_tensors(value.scores, f);
  }
};

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Bundle = std::tuple<at::Tensor, std::optional<at::Tensor>, std::map<std::string, at::Tensor>>;

// Many results over one weight.
struct ManyImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::ones({2}, torch::kDouble));
  Bundle forward(const Bundle& in) {
    return {std::get<0>(in) * weight, std::nullopt, {{"used", std::get<2>(in).at("x") * weight}, {"none", {}}}};
  }
  Detections forward(at::Tensor x, int factor) { return {x * weight * factor, {}}; }
  std::vector<at::Tensor> forward(std::unique_ptr<at::Tensor> owned) { return {*owned * weight}; }
  std::pair<at::Tensor, double> forward(double factor) { return {weight * factor, factor}; }
  const at::Tensor& forward() { return weight; }
};

TEST(AnyModule, GetsAnyArgumentsAndReturnsAnyResult) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<ManyImpl>();
    DistributedDataParallel model(net, group);
    const auto x = torch::full({2}, 1.0 + 2 * group->rank(), torch::kDouble);
    const auto expect_mean = [&](at::Tensor loss, double mean) {
      net->zero_grad();
      loss.sum().backward();
      EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({2}, mean, torch::kDouble))) << net->weight.grad();
    };
    expect_mean(std::get<2>(model(Bundle{x, std::nullopt, {{"x", x}}})).at("used"), 2);
    expect_mean(model(x, 3).boxes, 6);
    expect_mean(model(std::make_unique<at::Tensor>(x)).at(0), 2);
    expect_mean(model(1.0 + group->rank()).first, 1.5);
    static_assert(std::is_same_v<decltype(model()), const at::Tensor&>);
    EXPECT_TRUE(model().is_same(net->weight));
  });
}

TEST(AnyModule, MayHaveATemplateForward) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Sequential net;
    net->push_back(torch::nn::Linear(2, 3));
    net->push_back(torch::nn::Linear(3, 1));
    DistributedDataParallel model(net, group);
    const at::Tensor output = model(torch::ones({4, 2}));
    output.sum().backward();
    EXPECT_TRUE(same_on_all_ranks(*group, net->parameters()[0].grad()));
  });
}

TEST(AnyModule, MayHaveItsOutputChangedInPlace) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group);
    const auto batch = Batch::of_step(0, 4);
    const auto loss = [](at::Tensor output) { return output.mul_(2).select(1, 0).relu_().mean(); };
    loss(model(batch.of_rank(group->rank(), 2).input)).backward();
    loss(reference(batch.input)).backward();
    EXPECT_TRUE(close(net->layers[1]->weight.grad(), reference->layers[1]->weight.grad(), 1e-12));
  });
}

TEST(AnyModule, MayHaveParametersAndBuffersThatAreUndefined) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Sequential net;
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(false)));
    net->push_back(torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(3).affine(false).track_running_stats(false)));
    DistributedDataParallel model(net, group);
    const at::Tensor output = model(torch::randn({4, 2}));
    output.pow(3).sum().backward();
    EXPECT_TRUE(same_on_all_ranks(*group, net->parameters()[0].grad()));
  });
}

struct NormImpl : torch::nn::Module {
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 1));
  at::Tensor forward(at::Tensor x) { return linear(norm(x)); }
};

TEST(Buffers, FollowRankZeroInEachTrainingForward) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<NormImpl>();
    DistributedDataParallel model(net, group);
    const auto step = [&](int number) {
      torch::manual_seed(100 * group->rank() + number);
      model(torch::randn({8, 3}) + group->rank()).sum().backward();
    };
    step(0);
    EXPECT_FALSE(same_on_all_ranks(*group, net->norm->running_mean));
    const auto rank0_mean = group->all_gather(net->norm->running_mean.view({1, 3}))[0].view({3});
    model(torch::zeros({2, 3}));  // starts from rank 0's values: the batch's mean is 0
    EXPECT_TRUE(close(net->norm->running_mean, rank0_mean * 0.9, 1e-6));
    EXPECT_TRUE(same_on_all_ranks(*group, net->norm->running_mean));
    EXPECT_TRUE(same_on_all_ranks(*group, net->norm->num_batches_tracked));
    model->set_broadcast_buffers(false);
    step(1);
    step(2);
    EXPECT_FALSE(same_on_all_ranks(*group, net->norm->running_mean));
  });
}

TEST(Buffers, FollowRankZeroAfterTheyWereLoaded) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<NormImpl>();
    DistributedDataParallel model(net, group);
    torch::nn::BatchNorm1d saved(3);
    saved->running_mean.fill_(5);
    std::stringstream file;
    torch::save(saved, file);
    torch::load(net->norm, file);
    if (group->rank() == 1) net->norm->running_mean.fill_(7);
    model(torch::zeros({2, 3})).sum().backward();
    EXPECT_TRUE(close(net->norm->running_mean, torch::full({3}, 4.5), 1e-6));
    EXPECT_TRUE(same_on_all_ranks(*group, net->linear->weight.grad()));
  });
}

TEST(Buffers, AreLeftAloneInEvaluation) {  // R37
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<NormImpl>();
    DistributedDataParallel model(net, group);
    if (group->rank() == 0) {
      model->eval();
      EXPECT_FALSE(net->norm->is_training());
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 10; ++i) model(torch::ones({2, 3}));
      model->train();
      for (int i = 0; i < 10; ++i) model(torch::ones({2, 3}));
    }
    model->train();
    model(torch::ones({2, 3})).sum().backward();
    EXPECT_TRUE(same_on_all_ranks(*group, net->linear->weight.grad()));
  });
}

// Two steps; where `evaluates`, rank 0 does so alone in between.
std::vector<at::Tensor> trained(const Group& group, bool evaluates) {
  torch::manual_seed(3);
  const auto net = std::make_shared<NormImpl>();
  DistributedDataParallel model(net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    if (step == 1 && evaluates && group->rank() == 0) {
      model->eval();
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 10; ++i) model(torch::full({2, 3}, 7.0));
      model->train();
    }
    optimizer.zero_grad();
    model(torch::arange(12.0).view({4, 3}).pow(group->rank() + 1)).pow(2).sum().backward();
    optimizer.step();
  }
  auto tensors = net->parameters();
  for (const auto& buffer : net->buffers()) tensors.push_back(buffer);
  return tensors;
}

TEST(Buffers, AndWeightsAreThoseOfARunInWhichRankZeroDidNotEvaluateAlone) {  // R37
  run_ranks(2, [](const Group& group) {
    const auto plain = trained(group, false), evaluated = trained(group, true);
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(evaluated[i], plain[i])) << i;
    EXPECT_GT(plain.at(1).abs().sum().item<float>(), 0);
  });
}

TEST(Buffers, OfEveryDtypeArriveExactly) {  // R28
  struct OddImpl : torch::nn::Module {
    explicit OddImpl(int rank) {
      register_parameter("weight", torch::ones({1}));
      register_buffer("bool", torch::full({3}, rank == 0, torch::kBool));
      register_buffer("uint8", torch::full({3}, 200 + rank, torch::kByte));
      register_buffer("int16", torch::full({5}, -300 - rank, torch::kShort));
      register_buffer("int64", torch::full({}, (std::int64_t{1} << 53) + 1 + 2 * rank, torch::kLong));
      register_buffer("bfloat16", torch::full({7}, 0.5 + rank, torch::kBFloat16));
      register_buffer("complex64", torch::full({2}, c10::complex<float>(1, -1 - rank), torch::kComplexFloat));
    }
    at::Tensor forward(at::Tensor x) { return x * named_parameters()["weight"]; }
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<OddImpl>(group->rank());
    const OddImpl rank0(0);
    DistributedDataParallel model(net, group);
    if (group->rank() == 1)
      for (auto& buffer : net->buffers()) buffer.zero_();
    model(torch::ones({1})).sum().backward();
    for (const auto& entry : net->named_buffers())
      EXPECT_TRUE(torch::equal(entry.value(), rank0.named_buffers()[entry.key()])) << entry.key();
  });
}

TEST(Buffers, CanBeBroadcastBetweenTwoForwardsOfOneGraph) {
  run_ranks(2, [](const Group& group) {
    struct ScaledImpl : torch::nn::Module {
      at::Tensor weight = register_parameter("weight", torch::ones({2}));
      at::Tensor scale = register_buffer("scale", torch::full({2}, 3.0));
      at::Tensor forward(at::Tensor x) { return x * weight * scale; }
    };
    DistributedDataParallel model(std::make_shared<ScaledImpl>(), group);
    auto first = model(torch::ones({2}));
    auto second = model(torch::ones({2}));
    (first + second).sum().backward();
    EXPECT_TRUE(torch::equal(model->module()->weight.grad(), torch::full({2}, 6.0)));
  });
}

}  // namespace
}  // namespace ddp
