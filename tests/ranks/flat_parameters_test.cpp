// flatten_parameters: where the data of parameters lie, and that nothing else changes by it.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/optim.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using Options = DistributedDataParallelOptions;
using Route = std::vector<int>;
using Tensors = std::vector<torch::Tensor>;

const Route kInOrder{0, 1, 2}, kBackwards{2, 1, 0};

Options flat(Options options = {}, bool on = true) {
  options.flatten_parameters = on;
  return options;
}

/// Buckets of two layers of RoutesImpl.
Options with_few_buckets(Options options = {}) {
  options.bucket_cap_mb = options.first_bucket_cap_mb = 300.0 / (1 << 20);
  return options;
}

const char* start_of(const torch::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }
bool is_behind(const torch::Tensor& tensor, const torch::Tensor& next) {
  return start_of(next) == start_of(tensor) + tensor.nbytes();
}
std::vector<const void*> addresses(const torch::nn::Module& net) {
  std::vector<const void*> all;
  for (const auto& parameter : net.parameters()) all.push_back(parameter.const_data_ptr());
  return all;
}

/// How many parameters lie behind another one; -1 where some do not although their gradients do.
int laid_as_gradients(const torch::nn::Module& net) {
  auto parameters = net.parameters();
  std::sort(parameters.begin(), parameters.end(),
            [](const auto& a, const auto& b) { return a.grad().const_data_ptr() < b.grad().const_data_ptr(); });
  int count = 0;
  for (std::size_t i = 1; i < parameters.size(); ++i) {
    if (!is_behind(parameters[i - 1].grad(), parameters[i].grad())) continue;
    if (!is_behind(parameters[i - 1], parameters[i])) return -1;
    ++count;
  }
  return count;
}

TEST(FlatParameters, LieAsTheirGradientsInTheBucketsFromTheStartOn) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group, flat());
    const auto wrapped = addresses(*net);
    for (int step = 0; step < 3; ++step) {
      squared_error(model(torch::ones({2, 8}, torch::kDouble)), torch::ones({2, 4}, torch::kDouble)).backward();
      EXPECT_EQ(laid_as_gradients(*net), 7);
      EXPECT_EQ(addresses(*net), wrapped);
    }
  });
}

/// The layer of each parameter, by address; empty where there are gaps between them.
Route layers_in_memory(const RoutesImpl& net) {
  struct Entry {
    torch::Tensor parameter;
    int layer;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < net.layers.size(); ++i)
    for (const auto& parameter : net.layers[i]->parameters()) entries.push_back({parameter, static_cast<int>(i)});
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return start_of(a.parameter) < start_of(b.parameter); });
  Route layers;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > 0 && !is_behind(entries[i - 1].parameter, entries[i].parameter)) return {};
    layers.push_back(entries[i].layer);
  }
  return layers;
}
const Route kAsRegistered{2, 2, 1, 1, 0, 0}, kAsArrived{0, 0, 1, 1, 2, 2};  // of kBackwards

TEST(FlatParameters, LieInTheOrderOfArrivalBeforeTheFirstStep) {
  for (const int world : {2, 3})
    run_ranks(world, [](const Group& group) {
      Routes net;
      DistributedDataParallel model(net, group, flat(with_few_buckets()));
      EXPECT_EQ(layers_in_memory(*net), kAsRegistered);
      model(Turn{group->rank(), 0, 0}.input(), kBackwards).sum().backward();
      EXPECT_EQ(layers_in_memory(*net), kAsArrived);
      const auto laid = addresses(*net);
      for (int step = 1; step < 4; ++step) {
        net->zero_grad();
        model(Turn{group->rank(), step, 0}.input(), kBackwards).sum().backward();
        EXPECT_EQ(laid_as_gradients(*net), 4);
        EXPECT_EQ(addresses(*net), laid);
      }
    });
}

TEST(FlatParameters, LieBackToFrontInAWorldOfOne) {
  run_ranks(1, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group, flat());
    const auto parameters = net->parameters();
    for (std::size_t i = 1; i < parameters.size(); ++i) EXPECT_TRUE(is_behind(parameters[i], parameters[i - 1]));
  });
}

TEST(FlatParameters, StayWhereTheyAreWithoutTheOption) {
  for (const int world : {1, 2})
    run_ranks(world, [](const Group& group) {
      Perceptron net;
      const auto before = addresses(*net);
      DistributedDataParallel model(net, group);
      EXPECT_EQ(addresses(*net), before);
    });
}

/// What a training gives: all parameters and gradients after each step.
template <class Make, class Loss>
Tensors trained(const Group& group, const Options& options, const Make& make, const Loss& loss) {
  Tensors all;
  const auto net = make();
  DistributedDataParallel model(net, group, options);
  const auto optimizer = sgd_with_momentum(model->parameters());
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    loss(model, *net, Turn{group->rank(), step, 0}).backward();
    for (const auto& parameter : net->parameters())
      if (parameter.grad().defined()) all.push_back(parameter.grad().to_dense().clone());
    optimizer->step();
    for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().clone());
  }
  return all;
}

void expect_same_bits(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
    EXPECT_EQ(a[i].strides(), b[i].strides()) << i;
  }
}

/// With the option as without it, on 1 to 3 ranks, in one bucket and in several.
template <class Make, class Loss>
void expect_same_bits(const Options& options, const Make& make, const Loss& loss) {
  for (const int world : {1, 2, 3})
    run_ranks(world, [&](const Group& group) {
      for (const auto& buckets : {options, with_few_buckets(options), with_bucket_each(options)})
        expect_same_bits(trained(group, flat(buckets), make, loss), trained(group, buckets, make, loss));
    });
}

std::shared_ptr<RoutesImpl> make_routes() { return std::make_shared<RoutesImpl>(); }
constexpr auto kInTurn = [](auto& model, auto&, const Turn& turn) {
  return model(turn.input(), kInOrder).pow(2).mean();
};
constexpr auto kInReverse = [](auto& model, auto&, const Turn& turn) {
  return model(turn.input(), kBackwards).pow(2).mean();
};

TEST(FlatParameters, ChangeNoBit) {
  expect_same_bits({}, make_routes, kInTurn);
  expect_same_bits({.gradient_as_bucket_view = false}, make_routes, kInTurn);
}

TEST(FlatParameters, ChangeNoBitWhereTheOrderChanges) { expect_same_bits({}, make_routes, kInReverse); }

TEST(FlatParameters, ChangeNoBitWithAStaticGraph) { expect_same_bits({.static_graph = true}, make_routes, kInReverse); }

TEST(FlatParameters, ChangeNoBitWithUnusedParameters) {
  expect_same_bits({.find_unused_parameters = true}, make_routes, [](auto& model, auto&, const Turn& turn) {
    return model(turn.input(), turn.step % 2 == 0 ? Route{2, 0} : kBackwards).pow(2).mean();
  });
}

TEST(FlatParameters, ChangeNoBitWhereAGraphIsKept) {
  expect_same_bits({}, make_routes, [](auto& model, auto&, const Turn& turn) {
    const auto loss = model(turn.input(), kBackwards).pow(2).mean();
    loss.backward({}, true);  // so that views of the weights live on; the caller goes through it again
    return loss;
  });
}

/// A network of [3, 4] to one number.
struct NetImpl : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};

template <class N>
void expect_same_bits_of(const Options& options = {}) {
  expect_same_bits(
      options,
      [] {
        torch::manual_seed(3);
        return std::make_shared<N>();
      },
      [](auto& model, auto&, const Turn& turn) { return model(turn.input().detach()); });
}

struct MixedImpl : NetImpl {
  MixedImpl() {
    for (std::size_t i = 0; i < layers.size(); i += 2) layers[i]->to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x) override {
    for (auto& layer : layers) x = torch::tanh(layer(x.to(layer->weight.scalar_type())));
    return x.pow(2).mean();
  }
  std::vector<torch::nn::Linear> layers{
      register_module("a", torch::nn::Linear(4, 4)), register_module("b", torch::nn::Linear(4, 5)),
      register_module("c", torch::nn::Linear(5, 4)), register_module("d", torch::nn::Linear(4, 2))};
};

TEST(FlatParameters, ChangeNoBitWithSeveralDtypes) { expect_same_bits_of<MixedImpl>(); }

struct ChannelsLastImpl : NetImpl {
  ChannelsLastImpl() {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::Tensor forward(torch::Tensor x) override {
    const auto image = x.to(torch::kFloat).expand({2, 3, 3, 4}).contiguous(at::MemoryFormat::ChannelsLast);
    return second(torch::relu(first(image))).pow(2).mean();
  }
  torch::nn::Conv2d first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 2)));
  torch::nn::Conv2d second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 2, 2)));
};

TEST(FlatParameters, ChangeNoBitOfAConvolutionWithChannelsLast) { expect_same_bits_of<ChannelsLastImpl>(); }

struct TiedImpl : NetImpl {
  TiedImpl() {
    decoder->weight = decoder->replace_weight(encoder->weight);
    to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x) override { return decoder(torch::tanh(encoder(x))).pow(2).mean(); }

  struct DecoderImpl : torch::nn::Module {
    torch::Tensor replace_weight(const torch::Tensor& other) { return register_parameter("weight", other); }
    torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight.t()); }
    torch::Tensor weight;
  };
  torch::nn::Linear encoder = register_module("encoder", torch::nn::Linear(4, 6));
  std::shared_ptr<DecoderImpl> decoder_ = register_module("decoder", std::make_shared<DecoderImpl>());
  torch::nn::ModuleHolder<DecoderImpl> decoder{decoder_};
};

TEST(FlatParameters, ChangeNoBitOfTiedWeights) {
  expect_same_bits_of<TiedImpl>();
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<TiedImpl>();
    DistributedDataParallel model(net, group, flat());
    EXPECT_TRUE(is_behind(net->encoder->bias, net->encoder->weight));
    EXPECT_EQ(net->decoder_->weight.data_ptr(), net->encoder->weight.data_ptr());
  });
}

struct RecurrentImpl : NetImpl {
  RecurrentImpl() { to(torch::kDouble); }
  torch::Tensor forward(torch::Tensor x) override {
    return std::get<0>(gru(std::get<0>(lstm(x.unsqueeze(1))))).pow(2).mean();
  }
  torch::nn::LSTM lstm =
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(4, 3).num_layers(2).bidirectional(true)));
  torch::nn::GRU gru = register_module("gru", torch::nn::GRU(6, 2));
};

TEST(FlatParameters, ChangeNoBitOfRecurrentLayers) { expect_same_bits_of<RecurrentImpl>(); }

/// One parameter frozen, one ignored, one with sparse gradients, one over a buffer.
struct PatchworkImpl : NetImpl {
  PatchworkImpl() {
    frozen->weight.requires_grad_(false);
    to(torch::kDouble);
    shared = register_parameter("shared", all.narrow(0, 1, 4).detach());
  }
  torch::Tensor forward(torch::Tensor x) override {
    const auto words = embedding(torch::tensor({1, 5, 2}));
    return last(torch::tanh(ignored(frozen(x + words)) + shared)).pow(2).mean() + all.sum();
  }
  torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(4, 4));
  torch::nn::Linear ignored = register_module("ignored", torch::nn::Linear(4, 4));
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 4).sparse(true)));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(4, 3));
  torch::Tensor all = register_buffer("all", torch::ones({9}, torch::kDouble));
  torch::Tensor shared;
};
const Options kPatchwork{.ignored_parameters = {"ignored.weight"}};

// Its sparse gradients are for an optimizer without momentum.
TEST(FlatParameters, ChangeNoBitBesideOthersThatStay) {
  for (const int world : {1, 2})
    run_ranks(world, [](const Group& group) {
      std::vector<Tensors> results;
      for (const bool on : {true, false}) {
        torch::manual_seed(3);
        const auto net = std::make_shared<PatchworkImpl>();
        const Tensors others{net->frozen->weight, net->ignored->weight, net->embedding->weight, net->shared};
        std::vector<const void*> before;
        for (const auto& other : others) before.push_back(other.const_data_ptr());
        DistributedDataParallel model(net, group, flat(kPatchwork, on));
        torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          model(Turn{group->rank(), step, 0}.input().detach()).backward();
          optimizer.step();
        }
        auto& all = results.emplace_back(Tensors{net->all.clone()});
        for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().clone());
        for (std::size_t i = 0; i < others.size(); ++i) EXPECT_EQ(others[i].const_data_ptr(), before[i]) << i;
        EXPECT_TRUE(torch::equal(net->all.narrow(0, 1, 4), net->shared));
        EXPECT_EQ(is_behind(net->last->bias, net->last->weight), on);
      }
      expect_same_bits(results[0], results[1]);
    });
}

TEST(FlatParameters, AreNamedOnceWhereTheyShareMemory) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    const auto group = init_process_group({.environment = environment});
    const auto net = std::make_shared<PatchworkImpl>();
    DistributedDataParallel model(net, group, flat(with_bucket_each(kPatchwork)));
    for (int step = 0; step < 3; ++step) model(Turn{group->rank(), step, 0}.input().detach()).backward();
  });
  int times = 0;
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    times += count(outcome.output, "flatten_parameters: these stay where they are: shared (another tensor");
    EXPECT_EQ(count(outcome.output, "flatten_parameters:"), count(outcome.output, "stay where they are: shared ("));
  }
  EXPECT_EQ(times, 1);
}

TEST(FlatParameters, MayBeFlatOnSomeRanksOnly) {
  run_ranks(3, [](const Group& group) {
    const auto mixed = flat(with_few_buckets(), group->rank() == 1);
    expect_same_bits(trained(group, mixed, make_routes, kInReverse),
                     trained(group, with_few_buckets(), make_routes, kInReverse));
  });
}

TEST(FlatParameters, OfARankThatHasLeftItsLoopFollowTheOthers) {
  run_ranks(2, [](const Group& group) {
    std::vector<Tensors> results;
    for (const bool on : {true, false}) {
      Routes net;
      DistributedDataParallel model(net, group, flat(with_few_buckets(), on));
      const auto optimizer = sgd_with_momentum(model->parameters());
      const auto step = [&] {
        optimizer->step();
        optimizer->zero_grad();
      };
      auto join = model->join();
      for (int i = 0; i < (group->rank() == 0 ? 3 : 0); ++i) {
        model(Turn{group->rank(), i, 0}.input(), kBackwards).pow(2).mean().backward();
        step();
      }
      join.finish(step);
      auto& all = results.emplace_back();
      for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().clone());
      if (on) {
        EXPECT_EQ(layers_in_memory(*net), kAsArrived);
      }
    }
    expect_same_bits(results[0], results[1]);
    EXPECT_TRUE(same_on_all_ranks(*group, results[0][0]));
  });
}

template <class Holder>
std::string saved(const Holder& net) {
  std::ostringstream file;
  torch::save(net, file);
  return file.str();
}

TEST(FlatParameters, AreSavedAsIfTheyWereNot) {
  for (const int world : {1, 2})
    run_ranks(world, [](const Group& group) {
      Perceptron net, plain;
      const auto before = saved(net).size();
      DistributedDataParallel model(net, group, flat());
      EXPECT_TRUE(is_behind(net->layers[0]->bias, net->layers[0]->weight));
      const auto bytes = saved(net);
      EXPECT_EQ(bytes.size(), before);
      std::istringstream file(bytes);
      torch::load(plain, file);
      for (std::size_t i = 0; i < plain->parameters().size(); ++i)
        EXPECT_TRUE(torch::equal(plain->parameters()[i], net->parameters()[i]));
    });
}

TEST(FlatParameters, MayBeLoadedOver) {
  Routes other;
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : other->parameters()) parameter.mul_(0.5);
  }
  const auto bytes = saved(other);
  for (const int before_step : {0, 2})
    expect_same_bits({}, make_routes, [&](auto& model, auto& net, const Turn& turn) {
      if (turn.step == before_step) {
        std::istringstream copy(bytes);
        torch::serialize::InputArchive archive;
        archive.load_from(copy);
        net.load(archive);
      }
      return model(turn.input(), kBackwards).pow(2).mean();
    });
}

/// Trains 2 ranks up to `steps`, from the checkpoint on where there is one.
void train_until(std::int64_t steps, const std::filesystem::path& path, bool on, const MakeOptimizer& make_optimizer) {
  const bool goes_on = std::filesystem::exists(path);
  run_ranks(2, [&](const Group& group) {
    Routes net;
    if (goes_on) {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.mul_(-1);
    }
    DistributedDataParallel model(net, group, flat(with_few_buckets(), on));
    const auto optimizer = make_optimizer(model->parameters());
    Checkpoint checkpoint(path, model, *optimizer);
    auto step = checkpoint.load_or_start().step;
    EXPECT_EQ(step > 0, goes_on);
    const auto laid = addresses(*net);
    for (; step < steps; ++step) {
      optimizer->zero_grad();
      kInReverse(model, *net, Turn{group->rank(), static_cast<int>(step), 0}).backward();
      optimizer->step();
    }
    if (goes_on) {
      EXPECT_EQ(addresses(*net), laid);  // the order was in the file
    }
    EXPECT_EQ(laid_as_gradients(*net) == 4, on);
    checkpoint.save({.step = steps});
  });
}

void expect_exact_resume(const MakeOptimizer& make_optimizer) {
  for (const bool before : {false, true})
    for (const bool after : {false, true}) {
      const TempFolder folder;
      train_until(6, folder / "straight.pt", false, make_optimizer);
      train_until(3, folder / "resumed.pt", before, make_optimizer);
      train_until(6, folder / "resumed.pt", after, make_optimizer);
      EXPECT_EQ(contents(folder / "resumed.pt"), contents(folder / "straight.pt")) << before << after;
    }
}

TEST(FlatParameters, GoOnFromACheckpointOfEitherKind) {
  expect_exact_resume(sgd_with_momentum);
  expect_exact_resume(adamw);
}

/// Two layers, which a clone() gets, too.
struct TwinImpl : torch::nn::Cloneable<TwinImpl> {
  TwinImpl() { TwinImpl::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 4));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return first(torch::tanh(second(x))).pow(2).mean(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST(FlatParameters, OfAModuleAreClonedApart) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<TwinImpl>();
    DistributedDataParallel model(net, group, flat());
    const auto copy = std::dynamic_pointer_cast<TwinImpl>(net->clone());
    const auto input = Turn{group->rank(), 0, 0}.input();
    EXPECT_TRUE(torch::equal(copy->forward(input), net->forward(input)));
    const auto before = copy->first->weight.detach().clone();
    model(input).backward();
    sgd_with_momentum(model->parameters())->step();
    EXPECT_TRUE(torch::equal(copy->first->weight, before));
    EXPECT_FALSE(torch::equal(net->first->weight, before));
  });
}

TEST(FlatParameters, MayBeWrappedAgainAndOutliveTheirWrapper) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<TwinImpl>(), plain = std::make_shared<TwinImpl>();
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < net->parameters().size(); ++i) plain->parameters()[i].copy_(net->parameters()[i]);
    }
    const auto train = [&](const std::shared_ptr<TwinImpl>& module, const Options& options) {
      DistributedDataParallel model(module, group, options);
      const auto optimizer = sgd_with_momentum(model->parameters());
      for (int step = 0; step < 3; ++step) {
        optimizer->zero_grad();
        model(Turn{group->rank(), step, 0}.input()).backward();
        optimizer->step();
      }
    };
    for (const auto& options : {Options{}, kBucketEach, Options{}}) {
      train(net, flat(options));
      train(plain, options);
      expect_same_bits(net->parameters(), plain->parameters());
    }
    EXPECT_EQ(laid_as_gradients(*net), 3);
    train(net, {});
    EXPECT_EQ(laid_as_gradients(*net), 3);  // and stay so
    train(plain, {});
    expect_same_bits(net->parameters(), plain->parameters());
    EXPECT_TRUE(net->forward(Turn{0, 0, 0}.input()).isfinite().item<bool>());
  });
}

/// What a training with one of our own optimizers gives.
template <class Optimizer, class OptimizerOptions>
Tensors trained_by(const Group& group, const Options& options, bool steps_in_backward) {
  Routes net;
  DistributedDataParallel model(net, group, options);
  Optimizer optimizer(model->parameters(), OptimizerOptions(0.05));
  if (steps_in_backward) optimizer.step_in_backward(model);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    model(Turn{group->rank(), step, 0}.input(), kBackwards).pow(2).mean().backward();
    optimizer.step();
  }
  return net->parameters();
}

template <class Optimizer, class OptimizerOptions>
void expect_same_bits_by() {
  for (const int world : {1, 2, 3})
    run_ranks(world, [](const Group& group) {
      for (const auto& options : {Options{}, with_few_buckets(), kBucketEach})
        for (const bool in_backward : {false, true})
          expect_same_bits(trained_by<Optimizer, OptimizerOptions>(group, flat(options), in_backward),
                           trained_by<Optimizer, OptimizerOptions>(group, options, in_backward));
    });
}

TEST(FlatParameters, ChangeNoBitOfFusedOptimizers) {
  expect_same_bits_by<optim::SGD, optim::SGDOptions>();
  expect_same_bits_by<optim::AdamW, optim::AdamWOptions>();
}

/// In the order of their parameters' addresses.
bool states_lie_as_parameters(optim::AdamW& optimizer) {
  auto parameters = optimizer.param_groups()[0].params();
  std::sort(parameters.begin(), parameters.end(),
            [](const auto& a, const auto& b) { return start_of(a) < start_of(b); });
  const auto state = [&](const torch::Tensor& parameter) {
    return static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()))
        .exp_avg();
  };
  for (std::size_t i = 1; i < parameters.size(); ++i)
    if (!is_behind(parameters[i - 1], parameters[i]) || !is_behind(state(parameters[i - 1]), state(parameters[i])))
      return false;
  return true;
}

TEST(FlatParameters, HaveTheStateOfAFusedOptimizerInTheirOrderFromItsFirstStepOn) {
  for (const int world : {1, 2})
    run_ranks(world, [](const Group& group) {
      Routes net;
      DistributedDataParallel model(net, group, flat(with_few_buckets()));
      optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.01));
      const void* memory = nullptr;
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        model(Turn{group->rank(), step, 0}.input(), kBackwards).sum().backward();
        optimizer.step();
        EXPECT_TRUE(states_lie_as_parameters(optimizer)) << step;
        const auto& state = *optimizer.state().at(net->layers[0]->weight.unsafeGetTensorImpl());
        const auto* now = static_cast<const torch::optim::AdamWParamState&>(state).exp_avg().const_data_ptr();
        if (step > 0) {
          EXPECT_EQ(now, memory);  // made once
        }
        memory = now;
      }
    });
}

}  // namespace
}  // namespace ddp
