// Checkpoints of several ranks: one file, one decision, one error.

#include "ddp/checkpoint.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/distributed_sampler.hpp"
#include "ddp/error.hpp"
#include "support/ranks.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

constexpr std::int64_t kRows = 12;

void expect_same_parameters(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (const auto& entry : a.named_parameters())
    EXPECT_TRUE(torch::equal(entry.value(), b.named_parameters()[entry.key()])) << entry.key();
}

/// Trains 2 ranks up to `last_epoch` in new processes, from the checkpoint on where there is one, and saves at the
/// end. A run that goes on begins with other weights. Each epoch is a pass over half of the samples, in batches of 3.
void train_until(std::int64_t last_epoch, const std::filesystem::path& path, const MakeOptimizer& make_optimizer) {
  const auto seed = std::filesystem::exists(path) ? 99U : 7U;
  run_ranks(2, [&](const Group& group) {
    Perceptron net(seed);
    DistributedDataParallel model(net, group);
    const auto optimizer = make_optimizer(model->parameters());
    DistributedSampler sampler(kRows, *group, {.seed = 5});
    const auto data = Batch::of_step(0, kRows);
    Checkpoint checkpoint(path, model, *optimizer, sampler);
    for (auto epoch = checkpoint.load_or_start().epoch; epoch < last_epoch; ++epoch) {
      sampler.set_epoch(static_cast<std::size_t>(epoch));
      sampler.reset();
      while (const auto indices = sampler.next(3)) {
        const auto rows = torch::tensor(std::vector<std::int64_t>(indices->begin(), indices->end()));
        optimizer->zero_grad();
        squared_error(model(data.input.index_select(0, rows)), data.target.index_select(0, rows)).backward();
        optimizer->step();
      }
    }
    for (const auto& entry : net->named_parameters())
      EXPECT_TRUE(same_on_all_ranks(*group, entry.value())) << entry.key();
    checkpoint.save({.epoch = last_epoch});
  });
}

void expect_three_and_three_to_be_six(const MakeOptimizer& make_optimizer) {
  const TempFolder folder;
  train_until(6, folder / "straight.pt", make_optimizer);
  train_until(3, folder / "resumed.pt", make_optimizer);
  train_until(6, folder / "resumed.pt", make_optimizer);
  Perceptron initial, straight, resumed;
  torch::load(straight, (folder / "straight.pt").string());
  torch::load(resumed, (folder / "resumed.pt").string());
  expect_same_parameters(*straight, *resumed);
  EXPECT_FALSE(torch::equal(straight->parameters()[0], initial->parameters()[0]));
}

TEST(Checkpoint, GoesOnInNewProcessesToTheBitWithMomentum) { expect_three_and_three_to_be_six(sgd_with_momentum); }
TEST(Checkpoint, GoesOnInNewProcessesToTheBitWithAdamW) { expect_three_and_three_to_be_six(adamw); }

TEST(Checkpoint, MayBeLoadedByAnotherNumberOfRanks) {
  const TempFolder folder;
  train_until(2, folder / "run.pt", sgd_with_momentum);
  for (const int world : {1, 3}) {
    run_ranks(world, [&](const Group& group) {
      Perceptron net(1);
      DistributedDataParallel model(net, group);
      DistributedSampler sampler(kRows, *group);
      const auto optimizer = sgd_with_momentum(model->parameters());
      EXPECT_EQ(Checkpoint(folder / "run.pt", model, *optimizer, sampler).load_or_start().epoch, 2);
      EXPECT_EQ(sampler.epoch(), 2U) << "after two whole passes";
      Perceptron saved;
      torch::load(saved, (folder / "run.pt").string());
      expect_same_parameters(*net, *saved);
    });
  }
}

TEST(Checkpoint, IsReadByRankZeroForAll) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    Perceptron net(static_cast<std::uint64_t>(group->rank()));
    const auto path = group->rank() == 0 ? folder / "run.pt" : std::filesystem::path("/a/folder/of/rank/0/only/run.pt");
    Checkpoint checkpoint(path, net.ptr(), group);
    EXPECT_EQ(checkpoint.load_or_start().epoch, 0);
    checkpoint.save({.epoch = 3});
    EXPECT_EQ(checkpoint.load_or_start().epoch, 3);
    EXPECT_TRUE(same_on_all_ranks(*group, net->parameters()[0]));
  });
}

/// The text of the CheckpointError that `action` throws on this rank; every rank's must be the same but for who
/// speaks. The group still works afterwards.
template <class Action>
std::string common_error(ProcessGroup& group, const Action& action) {
  std::string text = "no CheckpointError";
  try {
    action();
  } catch (const CheckpointError& error) {
    text = error.what();
  }
  const auto speaker = "rank " + std::to_string(group.rank()) + " of 2: ";
  EXPECT_EQ(text.substr(0, speaker.size()), speaker) << text;
  const auto all = group.all_gather_bytes(text.substr(std::min(text.size(), speaker.size())));
  EXPECT_EQ(all[0], all[1]);
  return all[0];
}

TEST(Checkpoint, FailsOnAllRanksWhereRankZeroCannotWrite) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    Perceptron net(1);
    DistributedDataParallel model(net, group);
    Checkpoint nowhere(folder / "gone/run.pt", model);
    EXPECT_TRUE(contains(common_error(*group, [&] { nowhere.save({}); }), "No such file or directory"));
    EXPECT_TRUE(contains(common_error(*group, [&] { nowhere.load_or_start(); }), "No such file or directory"));

    Checkpoint checkpoint(folder / "run.pt", model);
    checkpoint.save({.epoch = 1});
    if (group->rank() == 0) {
      const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    EXPECT_TRUE(contains(common_error(*group, [&] { checkpoint.save({.epoch = 2}); }), "File too large"));
    EXPECT_EQ(checkpoint.load_or_start().epoch, 1);
    EXPECT_EQ(folder.files(), std::vector<std::string>{"run.pt"});
  });
}

TEST(Checkpoint, FailsOnAllRanksWhereTheFileIsDamaged) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    Perceptron net(1);
    DistributedDataParallel model(net, group);
    Checkpoint checkpoint(folder / "run.pt", model);
    checkpoint.save({});
    if (group->rank() == 0) overwrite(folder / "run.pt", contents(folder / "run.pt").substr(0, 3000));
    EXPECT_TRUE(contains(common_error(*group, [&] { checkpoint.load_or_start(); }), "its end is missing"));
  });
}

TEST(Checkpoint, ChangesNoRankWhereOneRankHoldsAnotherModel) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    const auto module = std::make_shared<torch::nn::Module>();
    const auto weight = module->register_parameter("weight", torch::zeros({3}));
    Checkpoint checkpoint(folder / "run.pt", module, group);
    checkpoint.save({});
    const auto other = std::make_shared<torch::nn::Module>();
    const auto changed = other->register_parameter("weight", torch::ones({3 + group->rank()}));
    Checkpoint mismatch(folder / "run.pt", other, group);
    const auto text = common_error(*group, [&] { mismatch.load_or_start(); });
    EXPECT_TRUE(
        contains(text, "on rank 1: it holds another model: weight is Float [3] in the file and Float [4] here"));
    EXPECT_TRUE(torch::equal(changed, torch::ones_like(changed)));
  });
}

TEST(Checkpoint, IsNotNeededForFilesOfTheWrapperAndThePlainModule) {
  const TempFolder folder;
  run_ranks(2, [&](const Group& group) {
    const auto path = (folder / ("model" + std::to_string(group->rank()) + ".pt")).string();
    Perceptron net(1), plain(2), other(3);
    DistributedDataParallel model(net, group);
    torch::save(model, path);
    torch::load(plain, path);
    expect_same_parameters(*plain, *net);

    torch::save(other, path);
    torch::load(model, path);
    expect_same_parameters(*net, *other);
  });
}

}  // namespace
}  // namespace ddp
