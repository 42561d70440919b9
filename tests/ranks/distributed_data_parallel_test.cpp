// DistributedDataParallel against one process on the whole batch.

#include "ddp/distributed_data_parallel.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <sstream>

#include "base/exit_code.hpp"
#include "ddp/run.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

// Small enough that every layer of the perceptron has a bucket of its own.
const DistributedDataParallelOptions kManyBuckets{.bucket_cap_mb = 0.0005, .first_bucket_cap_mb = 0.0001};

void expect_equal_to_one_process(int world, const MakeOptimizer& make_optimizer,
                                 const DistributedDataParallelOptions& options = kManyBuckets) {
  run_ranks(world, [&](const Group& group) {
    Perceptron reference(7), net(7 + group->rank());
    DistributedDataParallel model(net, group, options);
    const auto optimizer = make_optimizer(model->parameters());
    const auto reference_optimizer = make_optimizer(reference->parameters());
    for (int step = 0; step < 50; ++step) {
      const auto batch = Batch::of_step(step, 12);
      const auto mine = batch.of_rank(group->rank(), group->size());
      optimizer->zero_grad();
      squared_error(model(mine.input), mine.target).backward();
      optimizer->step();
      reference_optimizer->zero_grad();
      squared_error(reference(batch.input), batch.target).backward();
      reference_optimizer->step();
    }
    for (const auto& entry : net->named_parameters()) {
      EXPECT_TRUE(close(entry.value(), reference->named_parameters()[entry.key()], 1e-10)) << entry.key();
      EXPECT_TRUE(same_on_all_ranks(*group, entry.value())) << entry.key();
    }
  });
}

class DistributedDataParallelOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DistributedDataParallelOnRanks, ::testing::Values(1, 2, 3, 4),
                         [](const auto& world) { return "Of" + std::to_string(world.param); });

TEST_P(DistributedDataParallelOnRanks, EqualsOneProcessWithMomentum) {
  expect_equal_to_one_process(GetParam(), sgd_with_momentum);
}
TEST_P(DistributedDataParallelOnRanks, EqualsOneProcessWithAdamW) { expect_equal_to_one_process(GetParam(), adamw); }

TEST(DistributedDataParallel, EqualsOneProcessForEveryBucketCapAndWithoutViews) {
  for (const double cap : {1.0 / 1024 / 1024, 25.0, 10240.0})
    for (const bool views : {true, false})
      expect_equal_to_one_process(2, sgd_with_momentum,
                                  {.bucket_cap_mb = cap, .first_bucket_cap_mb = cap, .gradient_as_bucket_view = views});
}

TEST(DistributedDataParallel, AveragesWhileBackwardStillRuns) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<WaitsForMeanImpl>();
    DistributedDataParallel model(net, group, kBucketEach);
    EXPECT_TRUE(averages_while_backward_runs(model, *net, group->rank()));
  });
}

TEST(DistributedDataParallel, MakesReplicasEqualAtConstruction) {  // R17
  struct MixedImpl : torch::nn::Module {
    explicit MixedImpl(int seed) {
      torch::manual_seed(seed);
      register_parameter("image", torch::randn({4, 3, 2, 2}).contiguous(torch::MemoryFormat::ChannelsLast));
      register_parameter("half", torch::randn({5}).to(torch::kHalf));
      register_parameter("transposed", torch::randn({3, 7}).t());
      register_parameter("frozen", torch::randn({3}), false);
      register_buffer("count", torch::full({}, (std::int64_t{1} << 53) + 1 + seed, torch::kLong));
      register_buffer("mask", torch::randn({9}) > 0);
      register_buffer("missing", {});
    }
  };
  run_ranks(3, [&](const Group& group) {
    const auto module = std::make_shared<MixedImpl>(group->rank());
    const MixedImpl rank0(0);
    DistributedDataParallel model(module, group);
    for (const auto& entry : module->named_parameters()) {
      EXPECT_TRUE(torch::equal(entry.value(), rank0.named_parameters()[entry.key()])) << entry.key();
      EXPECT_TRUE(same_on_all_ranks(*group, entry.value())) << entry.key();
    }
    EXPECT_TRUE(torch::equal(module->named_buffers()["count"], rank0.named_buffers()["count"]));
    EXPECT_TRUE(torch::equal(module->named_buffers()["mask"], rank0.named_buffers()["mask"]));
  });
}

TEST(DistributedDataParallel, NamesTheFirstDifferenceBetweenModelsOnEveryRank) {  // R15
  const auto build = [](int variant) {
    torch::nn::Sequential net;
    net->push_back("first", torch::nn::Linear(4, variant == 1 ? 6 : 5));
    net->push_back("second", torch::nn::Linear(variant == 1 ? 6 : 5, 2));
    if (variant == 2) net->push_back("third", torch::nn::Linear(2, 2));
    if (variant == 3) net->to(torch::kDouble);
    if (variant == 4) net->parameters()[0].set_requires_grad(false);
    if (variant == 5) net->parameters()[0].set_data(torch::ones({4, 5}).t());
    if (variant == 6) net->push_back("second again", std::dynamic_pointer_cast<torch::nn::LinearImpl>(net[1]));
    if (variant == 7) net->push_back("second again", torch::nn::Linear(5, 2));
    if (variant == 8) net[1]->register_buffer("extra", torch::ones({1}));
    return net;
  };
  const std::vector<std::string> named{
      "",        "first.weight",          "third.weight",        "first.weight", "first.weight",
      "strides", "tied to second.weight", "second again.weight", "extra"};
  for (int variant = 1; variant <= 8; ++variant) {
    run_ranks(3, [&](const Group& group) {
      const auto net = build(group->rank() == 2 ? variant : variant == 6 ? 7 : 0);
      const auto start = std::chrono::steady_clock::now();
      try {
        DistributedDataParallel model(net, group);
        ADD_FAILURE() << "no exception";
      } catch (const ModelMismatchError& error) {
        EXPECT_NE(std::string(error.what()).find(named[variant]), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("rank 2 has"), std::string::npos) << error.what();
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    });
  }
}

TEST(DistributedDataParallel, NamesAnOptionThatDiffersBetweenRanks) {
  run_ranks(2, [](const Group& group) {
    const std::vector<std::pair<DistributedDataParallelOptions, std::string>> variants{
        {{.bucket_cap_mb = 1.0 + group->rank()}, "bucket_cap_mb 2"},
        {{.first_bucket_cap_mb = 1.0 + group->rank()}, "first_bucket_cap_mb 2"},
        {{.broadcast_buffers = group->rank() == 0}, "broadcast_buffers 0"}};
    for (const auto& [options, named] : variants) {
      try {
        DistributedDataParallel model(Perceptron(), group, options);
        ADD_FAILURE() << "no exception";
      } catch (const ModelMismatchError& error) {
        EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
      }
    }
  });
}

TEST(DistributedDataParallel, RefusesNothingToWrapAndExpandedTensors) {
  run_ranks(2, [](const Group& group) {
    EXPECT_THROW(DistributedDataParallel(std::shared_ptr<PerceptronImpl>(), group), std::logic_error);
    EXPECT_THROW(DistributedDataParallel(Perceptron(), std::shared_ptr<ProcessGroup>()), std::logic_error);
    struct ExpandedImpl : torch::nn::Module {
      ExpandedImpl() { register_buffer("wide", torch::ones({1, 3}).expand({4, 3})); }
      at::Tensor forward(at::Tensor x) { return x; }
    };
    try {
      DistributedDataParallel model(std::make_shared<ExpandedImpl>(), group);
      ADD_FAILURE() << "no exception";
    } catch (const std::logic_error& error) {
      EXPECT_NE(std::string(error.what()).find("buffer wide"), std::string::npos) << error.what();
    }
  });
}

TEST(DistributedDataParallel, NamesAParameterThatIsThawedAfterWrapping) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    net->layers[1]->bias.set_requires_grad(false);
    DistributedDataParallel model(net, group);
    const auto x = torch::ones({1, 8}, torch::kDouble);
    model(x).sum().backward();
    net->layers[1]->bias.set_requires_grad(true);
    try {
      model(x);
      ADD_FAILURE() << "no exception";
    } catch (const std::logic_error& error) {
      EXPECT_NE(std::string(error.what()).find("layer1.bias"), std::string::npos) << error.what();
    }
  });
}

TEST(DistributedDataParallel, PassesAModuleWithoutTrainableParametersThrough) {  // R11
  run_ranks(2, [](const Group& group) {
    Perceptron frozen;
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    DistributedDataParallel model(frozen, group);
    const auto input = torch::randn({2, 8}, torch::kDouble);
    EXPECT_TRUE(torch::equal(model(input), frozen(input)));
    struct NothingImpl : torch::nn::Module {
      at::Tensor forward(at::Tensor x) { return x * 2; }
    };
    DistributedDataParallel empty(std::make_shared<NothingImpl>(), group);
    auto x = torch::ones({2}).requires_grad_();
    empty(x).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 2.0)));
  });
}

TEST(DistributedDataParallel, CanBeWrappedAgainOnceTheFirstWrapperIsGone) {  // R12
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    const auto step = [&](auto& model, int number) {
      const auto batch = Batch::of_step(number, 4);
      const auto mine = batch.of_rank(group->rank(), 2);
      net->zero_grad();
      reference->zero_grad();
      squared_error(model(mine.input), mine.target).backward();
      squared_error(reference(batch.input), batch.target).backward();
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_TRUE(close(net->parameters()[i].grad(), reference->parameters()[i].grad(), 1e-10));
    };
    {
      DistributedDataParallel first(net, group);
      step(first, 0);
      try {
        DistributedDataParallel second(net, group);
        ADD_FAILURE() << "two live wrappers";
      } catch (const std::logic_error& error) {
        EXPECT_NE(std::string(error.what()).find("layer0.weight"), std::string::npos) << error.what();
      }
      step(first, 1);
    }
    DistributedDataParallel again(net, group, kManyBuckets);
    step(again, 2);
  });
}

TEST(DistributedDataParallel, GivesTheSameBitsAsPlainTrainingInAWorldOfOne) {  // R66
  const auto outcomes = observe_ranks(1, [](const Environment&) {
    for (const auto* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
    const auto group = init_process_group();
    Perceptron net(3, torch::kFloat), plain(3, torch::kFloat);
    DistributedDataParallel model(net, group);
    EXPECT_EQ(model->bucket_bytes(), 0);
    const auto optimizer = sgd_with_momentum(model->parameters());
    const auto plain_optimizer = sgd_with_momentum(plain->parameters());
    for (int step = 0; step < 10; ++step) {
      const auto batch = Batch::of_step(step, 8, torch::kFloat);
      optimizer->zero_grad();
      plain_optimizer->zero_grad();
      squared_error(model(batch.input), batch.target).backward();
      squared_error(plain(batch.input), batch.target).backward();
      optimizer->step();
      plain_optimizer->step();
    }
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(net->parameters()[i], plain->parameters()[i]));
  });
  ASSERT_TRUE(outcomes.at(0).succeeded()) << outcomes.at(0).output;
}

TEST(DistributedDataParallel, EndsOnAllRanksWithTheTextOfTheOneThatThrewInForward) {  // R22
  struct FailingImpl : PerceptronImpl {
    at::Tensor forward(at::Tensor x, bool fails) {
      if (fails) throw std::runtime_error("no memory for the batch");
      return PerceptronImpl::forward(x);
    }
  };
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = observe_ranks(3, [](const Environment& environment) {
    const int code = run([&] {
      const auto group = init_process_group({.timeout = std::chrono::minutes(5), .environment = environment});
      DistributedDataParallel model(std::make_shared<FailingImpl>(), group);
      for (int step = 1; step <= 5; ++step)
        model(torch::ones({2, 8}, torch::kDouble), group->rank() == 1 && step == 3).sum().backward();
    });
    EXPECT_EQ(code, environment.rank == 1 ? 1 : kLostPeerExitCode);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.succeeded()) << outcome.rank << ": " << outcome.output;
    const std::string text = outcome.rank == 1 ? "no memory for the batch" : "rank 1 failed: no memory for the batch";
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.rank << ": " << outcome.output;
  }
}

TEST(DistributedDataParallel, RefusesAModuleElsewhereInWords) {
  run_ranks(2, [](const Group& group) {
    const auto expect_refused = [&](const auto& net, const std::string& name) {
      try {
        DistributedDataParallel model(net, group);
        ADD_FAILURE() << "no exception";
      } catch (const std::logic_error& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("meta"), std::string::npos) << error.what();
      }
    };
    struct SplitImpl : torch::nn::Module {
      SplitImpl(at::Device first, at::Device second) {
        register_parameter("first", torch::ones({2}, first));
        register_buffer("second", torch::ones({2}, second));
      }
      at::Tensor forward(at::Tensor x) { return x; }
    };
    expect_refused(std::make_shared<SplitImpl>(torch::kMeta, torch::kMeta), "parameter first");
    expect_refused(std::make_shared<SplitImpl>(torch::kCPU, torch::kMeta), "buffer second");
  });
}

TEST(DistributedDataParallel, RefusesConversionAfterWrapping) {
  run_ranks(2, [](const Group& group) {
    Perceptron net;
    DistributedDataParallel model(net, group);
    EXPECT_THROW(model->to(torch::kFloat), std::logic_error);
    net->layers[1]->to(torch::kFloat);
    try {
      model(torch::ones({1, 8}, torch::kDouble));
      ADD_FAILURE() << "no exception";
    } catch (const std::logic_error& error) {
      EXPECT_NE(std::string(error.what()).find("layer1.weight"), std::string::npos) << error.what();
    }
  });
}

TEST(DistributedDataParallel, SavesAndLoadsAsThePlainModule) {
  run_ranks(2, [](const Group& group) {
    Perceptron net(1), plain(2);
    DistributedDataParallel model(net, group);
    std::stringstream wrapped_file, plain_file;
    torch::save(model, wrapped_file);
    torch::load(plain, wrapped_file);
    EXPECT_TRUE(torch::equal(plain->layers[3]->bias, net->layers[3]->bias));
    Perceptron other(5);
    torch::save(other, plain_file);
    torch::load(model, plain_file);
    EXPECT_TRUE(torch::equal(net->layers[0]->weight, other->layers[0]->weight));
    EXPECT_EQ(model->named_parameters().keys(), net->named_parameters().keys());
    // Loading gave the parameters other data; training goes on as before.
    const auto batch = Batch::of_step(0, 4);
    const auto mine = batch.of_rank(group->rank(), 2);
    squared_error(model(mine.input), mine.target).backward();
    squared_error(other(batch.input), batch.target).backward();
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(close(net->parameters()[i].grad(), other->parameters()[i].grad(), 1e-10));
  });
}

}  // namespace
}  // namespace ddp
