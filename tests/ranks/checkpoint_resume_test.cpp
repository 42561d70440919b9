// A run of several ranks that goes on in new processes, with all that must be as if it had never stopped.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/comm_hook.hpp"
#include "ddp/data_loader.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/distributed_sampler.hpp"
#include "ddp/error.hpp"
#include "ddp/state_dict.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

/// Its gradients come in another order than that of registration, so that buckets are made anew after the first step.
struct BackToFrontImpl : torch::nn::Module {
  explicit BackToFrontImpl(std::uint64_t seed) {
    torch::manual_seed(seed);
    for (int i = 0; i < 6; ++i) layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(8, 8)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) x = torch::tanh((*layer)(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(BackToFront);

/// Over Gloo the bits of a sum depend on where in a bucket a gradient lies.
TEST(CheckpointResume, AddsGradientsInTheOrderOfTheRunBefore) {
  const auto train = [](const std::filesystem::path& path, std::int64_t steps, bool by_samples) {
    run_ranks(3, [&](const Group& group) {
      BackToFront net(1);
      DistributedDataParallel model(
          net, group, {.bucket_cap_mb = 7e-4, .first_bucket_cap_mb = 7e-4, .weight_by_samples = by_samples});
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      Checkpoint checkpoint(path, model, optimizer);
      for (auto step = checkpoint.load_or_start().step; step < steps; ++step) {
        const auto batch =
            Batch::of_step(step, 9, torch::kFloat).input.chunk(3)[group->rank()].slice(0, 0, 1 + group->rank());
        optimizer.zero_grad();
        if (by_samples) model->set_samples(batch.size(0) + step);
        (model(batch) - 0.5).pow(2).mean().backward();
        optimizer.step();
      }
      checkpoint.save({.step = steps});
    });
  };
  for (const bool by_samples : {false, true}) {
    const TempFolder folder;
    train(folder / "straight.pt", 5, by_samples);
    train(folder / "resumed.pt", 3, by_samples);
    train(folder / "resumed.pt", 5, by_samples);
    const auto straight = load_pt(folder / "straight.pt").toGenericDict();
    EXPECT_EQ(contents(folder / "straight.pt"), contents(folder / "resumed.pt")) << "by samples: " << by_samples;
    EXPECT_FALSE(straight.at("ddp").toGenericDict().at("reducer").toGenericDict().at("order").toListRef().empty());
  }
}

/// Keeps a number on each rank.
struct Remembering : CommHook {
  std::string name() const override { return "remembering"; }
  std::function<void()> launch(ProcessGroup& group, GradBucket bucket) override {
    auto gradients = bucket.gradients;
    group.all_reduce(gradients);
    return [] {};
  }
  c10::IValue state() const override { return memory; }
  std::function<void()> stage(const c10::IValue& saved) override {
    return [this, staged = saved.toTensor().clone()] { memory = staged; };
  }
  at::Tensor memory = torch::zeros({3});
};

TEST(CheckpointResume, GivesEachRankBackWhatItsHookRemembers) {
  const TempFolder folder;
  run_ranks(3, [&](const Group& group) {
    const auto make = [&](const std::shared_ptr<CommHook>& hook) {
      return DistributedDataParallel(Perceptron(1), group, {.comm_hook = hook});
    };
    const auto saved = std::make_shared<Remembering>(), loaded = std::make_shared<Remembering>();
    saved->memory.fill_(10 + group->rank());
    Checkpoint(folder / "run.pt", make(saved)).save({});
    Checkpoint(folder / "run.pt", make(loaded)).load_or_start();
    EXPECT_TRUE(torch::equal(loaded->memory, saved->memory));
    Checkpoint(folder / "run.pt", make(nullptr)).load_or_start();
  });
}

TEST(CheckpointResume, GivesEachRankBackAValueOfItsOwn) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    const auto make = [&](std::int64_t& own, std::int64_t& common) {
      auto checkpoint = std::make_unique<Checkpoint>(folder / "run.pt", Perceptron(1).ptr(), group);
      auto value = CheckpointValue::of(own);
      value.of_each_rank = true;
      checkpoint->add("own", value);
      checkpoint->add("common", common);
      EXPECT_THROW(checkpoint->add("own", value), std::logic_error);
      return checkpoint;
    };
    std::int64_t own = 10 + group->rank(), common = own, loaded_own = 0, loaded_common = 0;
    make(own, common)->save({});
    make(loaded_own, loaded_common)->load_or_start();
    EXPECT_EQ(loaded_own, own);
    EXPECT_EQ(loaded_common, 10);
  });
}

TEST(CheckpointResume, NeedsTheGroupOfAPlainModuleOnARankOfSeveral) {
  run_ranks(2, [&](const Group&) { EXPECT_THROW(Checkpoint("run.pt", Perceptron(1)), std::logic_error); });
}

TEST(CheckpointResume, SaysWhatAnotherNumberOfRanksBeginsAnew) {
  const TempFolder folder;
  run_ranks(2,
            [&](const Group& group) { Checkpoint(folder / "run.pt", Perceptron(1).ptr(), group).save({.step = 4}); });
  const auto outcomes = observe_ranks(3, [&](const Environment& environment) {
    const auto group = init_process_group({.environment = environment});
    EXPECT_EQ(Checkpoint(folder / "run.pt", Perceptron(2).ptr(), group).load_or_start().step, 4);
    group->shutdown();
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.output;
  EXPECT_TRUE(contains(outcomes[0].output, "it is of 2 ranks, here are 3: random numbers go on from the ones here"));
}

/// The CheckpointError that `action` throws on this rank, without who speaks.
template <class Action>
std::string error_of(ProcessGroup& group, const Action& action) {
  try {
    action();
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    return text.substr(text.find(": ") + 2);
  }
  return "no CheckpointError on rank " + std::to_string(group.rank());
}

TEST(CheckpointResume, NoticesARankThatHoldsAnotherStateAfterLoading) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    const auto make = [](bool shares_memory) {
      auto module = std::make_shared<torch::nn::Module>();
      auto memory = torch::arange(8, torch::kFloat);
      module->register_buffer("a", memory.slice(0, 0, 4));
      module->register_buffer("b", shares_memory ? memory.slice(0, 2, 6) : torch::arange(4, torch::kFloat));
      return module;
    };
    Checkpoint(folder / "run.pt", make(false), group).save({});
    Checkpoint checkpoint(folder / "run.pt", make(group->rank() == 1), group);
    EXPECT_TRUE(contains(error_of(*group, [&] { checkpoint.load_or_start(); }),
                         "rank 1 holds another \"model\" than rank 0; give every rank the same parts"));
  });
}

TEST(CheckpointResume, LetsRanksDifferInAValueThatTheFileDoesNotHave) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    double seconds = group->rank();
    Checkpoint(folder / "run.pt", Perceptron(1).ptr(), group).save({.step = 2});
    Checkpoint checkpoint(folder / "run.pt", Perceptron(1).ptr(), group);
    checkpoint.add("seconds", seconds);
    EXPECT_EQ(checkpoint.load_or_start().step, 2);
    EXPECT_EQ(seconds, group->rank());
  });
}

TEST(CheckpointResume, IsAnErrorOnAllRanksWhereOneRankCannotTakeItsState) {
  const TempFolder folder;
  struct Odd {};
  run_ranks(2, [&](const Group& group) {
    for (const bool in_stage : {true, false}) {
      const auto refuse = [&] {
        if (group->rank() == 1) throw Odd();
      };
      Checkpoint checkpoint(folder / "run.pt", Perceptron(1).ptr(), group);
      checkpoint.add("value", CheckpointValue{.state = [] { return c10::IValue(1); },
                                              .stage = [&](const c10::IValue&) -> std::function<void()> {
                                                if (in_stage) refuse();
                                                return [&] { refuse(); };
                                              }});
      checkpoint.save({});
      EXPECT_TRUE(contains(error_of(*group, [&] { checkpoint.load_or_start(); }), "rank 1"));
      group->barrier();
    }
  });
}

TEST(CheckpointResume, MayTakeRankZeroLongerThanACollective) {
  const TempFolder folder;
  run_ranks(2,
            [&](const Group& group) {
              Checkpoint checkpoint(folder / "run.pt", Perceptron(1).ptr(), group,
                                    CheckpointOptions{.timeout = std::chrono::seconds(20)});
              checkpoint.add("slow", CheckpointValue{.state =
                                                         [] {
                                                           std::this_thread::sleep_for(std::chrono::milliseconds(2500));
                                                           return c10::IValue(1);
                                                         },
                                                     .stage = [](const c10::IValue&) { return [] {}; }});
              checkpoint.save({.step = 3});
            },
            {.group_timeout = std::chrono::milliseconds(1000)});
}

TEST(CheckpointResume, TellsEveryRankOfAFileThatFailedInTheBackground) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "here");
  run_ranks(2, [&](const Group& group) {
    Checkpoint checkpoint(folder / "here/run.pt", Perceptron(1).ptr(), group, CheckpointOptions{.background = true});
    checkpoint.save({.epoch = 1});
    checkpoint.wait();
    if (group->rank() == 0) std::filesystem::rename(folder / "here", folder / "there");
    checkpoint.save({.epoch = 2});
    EXPECT_TRUE(contains(error_of(*group, [&] { checkpoint.save({.epoch = 3}); }), "No such file or directory"));
    EXPECT_TRUE(contains(error_of(*group, [&] { checkpoint.wait(); }), "no CheckpointError"));
    if (group->rank() == 0) std::filesystem::rename(folder / "there", folder / "here");
    group->barrier();
    checkpoint.save({.epoch = 4});
    checkpoint.wait();
    EXPECT_EQ(checkpoint.load_or_start().epoch, 4);
  });
}

TEST(CheckpointResume, TellsEveryRankOfAStateThatOneRankCannotGive) {
  const TempFolder folder;
  struct Failing : Remembering {
    c10::IValue state() const override { throw std::runtime_error("memory lost"); }
  };
  run_ranks(2, [&](const Group& group) {
    const auto hook = group->rank() == 1 ? std::make_shared<Failing>() : std::make_shared<Remembering>();
    DistributedDataParallel model(Perceptron(1), group, {.comm_hook = hook});
    Checkpoint checkpoint(folder / "run.pt", model);
    EXPECT_TRUE(contains(error_of(*group, [&] { checkpoint.save({}); }), "rank 1: memory lost"));
    EXPECT_TRUE(folder.files().empty());
  });
}

/// Returns what it is asked for.
struct Indices
    : torch::data::datasets::Dataset<Indices, torch::data::Example<torch::Tensor, torch::data::example::NoTarget>> {
  explicit Indices(std::size_t count) : count_(count) {}
  ExampleType get(std::size_t index) override { return torch::tensor(static_cast<std::int64_t>(index)); }
  std::optional<std::size_t> size() const override { return count_; }
  std::size_t count_;
};

TEST(CheckpointResume, GoesOnWhereSomeRanksHaveASampleMore) {
  const TempFolder folder;
  for (const bool goes_on : {false, true}) {
    run_ranks(3, [&](const Group& group) {
      Perceptron net(1);
      DistributedSampler sampler(10, *group, {.pad = false});
      Checkpoint checkpoint(folder / "run.pt", net.ptr(), group);
      checkpoint.add(sampler);
      checkpoint.load_or_start();
      sampler.reset();
      std::size_t left = 0;
      for (auto batch = sampler.next(2); batch && (goes_on || sampler.position() < 4); batch = sampler.next(2))
        left += batch->size();
      if (goes_on) {
        EXPECT_EQ(left, 0U) << "all were received before";
      }
      checkpoint.save({});
    });
  }
}

TEST(CheckpointResume, GoesOnInsideAnEpochWithoutLosingOrRepeatingASample) {
  constexpr std::size_t kSamples = 48;
  for (const auto& [before, after] : {std::pair{2, 2}, {2, 3}, {3, 1}}) {
    const TempFolder folder;
    const auto run = [&](int world, std::size_t batches) {
      run_ranks(world, [&](const Group& group) {
        Perceptron net(1);
        DistributedSampler sampler(kSamples, *group, {.seed = 3, .pad = false});
        auto loader = make_data_loader(Indices(kSamples).map(torch::data::transforms::Stack<Indices::ExampleType>()),
                                       sampler, torch::data::DataLoaderOptions(4).workers(2));
        Checkpoint checkpoint(folder / "run.pt", net.ptr(), group);
        checkpoint.add(sampler);
        checkpoint.load_or_start();
        auto seen = torch::empty({0}, torch::kLong);
        for (auto& batch : *loader) {
          seen = torch::cat({seen, batch.data});
          if (--batches == 0) break;
        }
        checkpoint.save({.epoch = 0});
        const auto name = "seen" + std::to_string(world) + "." + std::to_string(group->rank()) + ".pt";
        torch::save(seen, (folder / name).string());
      });
    };
    run(before, 2);
    std::vector<torch::Tensor> parts;
    const auto collect = [&](int world) {
      for (int rank = 0; rank < world; ++rank) {
        const auto name = "seen" + std::to_string(world) + "." + std::to_string(rank) + ".pt";
        torch::load(parts.emplace_back(), (folder / name).string());
      }
    };
    collect(before);
    run(after, 1000);
    collect(after);
    const auto all = std::get<0>(torch::cat(parts).sort());
    EXPECT_TRUE(torch::equal(all, torch::arange(static_cast<std::int64_t>(kSamples)))) << before << " then " << after;
  }
}

}  // namespace
}  // namespace ddp
