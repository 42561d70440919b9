// A converted network, inside of DistributedDataParallel and out.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <string>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/run.hpp"
#include "ddp/state_dict.hpp"
#include "ddp/sync_batch_norm.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

/// [n, 2, 4, 4] to [n, 3] in float64, with batch norms as members and inside of a Sequential.
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    head->push_back(torch::nn::Linear(64, 6));
    head->push_back(torch::nn::BatchNorm1d(6));
    head->push_back(torch::nn::Linear(6, 3));
    register_module("head", head);
    to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x) { return head->forward(torch::relu(norm(conv(x))).flatten(1)); }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Sequential head;
};
TORCH_MODULE(Normed);

/// [rows, 2, 4, 4], the same on all ranks.
torch::Tensor images(std::int64_t rows, std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({rows, 2, 4, 4}, torch::kDouble);
}

void expect_equal_buffers(const torch::nn::Module& module, const torch::nn::Module& expected, double tolerance) {
  for (const auto& entry : expected.named_buffers())
    EXPECT_TRUE(close(module.named_buffers()[entry.key()], entry.value(), tolerance)) << entry.key();
}

TEST(ConvertSyncBatchNorm, TrainsAWrappedNetworkAsOneProcessDoesOnTheWholeBatch) {
  for (const int world : {1, 2, 3})
    run_ranks(world, [&](const Group& group) {
      torch::manual_seed(5);
      Normed net, whole;
      load_state_dict(*whole, state_dict(*net));
      EXPECT_EQ(convert_sync_batchnorm(net, group), 2);
      DistributedDataParallel model(net, group, kBucketEach);
      const auto optimizer = sgd_with_momentum(model->parameters()), twin = sgd_with_momentum(whole->parameters());
      for (std::uint64_t step = 0; step < 4; ++step) {
        optimizer->zero_grad();
        twin->zero_grad();
        for (std::uint64_t micro = 0; micro < 2; ++micro) {
          std::optional<NoSync> guard;
          if (micro == 0) guard.emplace(model->no_sync());
          const auto all = images(2 * world, 10 * step + micro);
          model(all.chunk(world)[static_cast<std::size_t>(group->rank())]).pow(3).mean().backward();
          whole->forward(all).pow(3).mean().backward();
        }
        expect_equal_training(*group, *net, *whole, "in step " + std::to_string(step));
        expect_equal_buffers(*net, *whole, 1e-10);
        optimizer->step();
        twin->step();
      }
    });
}

// So that a backward whose buckets leave late on one rank and early on the other meets the norms' calls in two orders.
TEST(ConvertSyncBatchNorm, BearsRanksWhoseBucketsLeaveAtDifferentTimes) {
  run_ranks(2, [](const Group& group) {
    Normed net;
    convert_sync_batchnorm(net, group);
    auto options = kBucketEach;
    options.overlap_communication = group->rank() == 0;
    DistributedDataParallel model(net, group, options);
    for (std::uint64_t step = 0; step < 10; ++step)
      model(images(4, step).chunk(2)[static_cast<std::size_t>(group->rank())]).pow(2).mean().backward();
    for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_on_all_ranks(*group, parameter.grad()));
  });
}

TEST(ConvertSyncBatchNorm, LeavesNamesTensorsAndFilesAsTheyWere) {
  run_ranks(2, [](const Group& group) {
    Normed net, plain;
    const auto mean = net->norm->running_mean;
    convert_sync_batchnorm(net, group);
    net->forward(images(4, 1));
    EXPECT_EQ(net->named_buffers().keys(), plain->named_buffers().keys());
    EXPECT_EQ(net->norm->running_mean.data_ptr(), mean.data_ptr());
    EXPECT_TRUE(net->norm->running_mean.is_same(net->named_buffers()["norm.running_mean"]));

    std::stringstream file;
    torch::save(net, file);
    torch::load(plain, file);
    expect_equal_buffers(*plain, *net, 0);
    Normed other;
    load_state_dict(*other, state_dict(*net));
    expect_equal_buffers(*other, *net, 0);
    std::stringstream text;
    text << net->norm->running_mean << net->norm->running_mean.toString();
    EXPECT_TRUE(contains(text.str(), "CPUDoubleType"));
  });
}

/// Whether the network's forward, of another batch on each rank, is that of the whole batch.
bool is_synchronised(Normed& net, ProcessGroup& group) {
  const auto dtype = net->norm->weight.scalar_type();
  Normed whole;
  whole->to(dtype);
  load_state_dict(*whole, state_dict(*net));
  const auto all = images(6, 77).to(dtype);
  const auto rank = static_cast<std::size_t>(group.rank());
  return close(net->forward(all.chunk(2)[rank]), whole->forward(all).chunk(2)[rank], 1e-4) &&
         close(net->norm->running_mean, whole->norm->running_mean, 1e-4);
}

TEST(ConvertSyncBatchNorm, OutlivesAMoveAndALoad) {
  run_ranks(2, [](const Group& group) {
    torch::manual_seed(5);
    Normed net, other;
    convert_sync_batchnorm(net, group);
    EXPECT_TRUE(is_synchronised(net, *group));
    other->norm->running_mean.fill_(5);
    std::stringstream file;
    torch::save(other, file);
    torch::load(net, file);
    EXPECT_EQ(net->norm->running_mean[0].item<double>(), 5);
    EXPECT_TRUE(is_synchronised(net, *group));
    net->to(torch::kFloat);
    EXPECT_EQ(net->norm->running_mean.scalar_type(), torch::kFloat);
    EXPECT_TRUE(is_synchronised(net, *group));
    other->to(torch::kFloat);
    load_state_dict(*net, state_dict(*other));
    EXPECT_EQ(net->norm->running_mean[0].item<double>(), 5);
    EXPECT_TRUE(is_synchronised(net, *group));
    EXPECT_EQ(convert_sync_batchnorm(net, group), 2);  // once more changes nothing
    EXPECT_TRUE(is_synchronised(net, *group));
  });
}

TEST(ConvertSyncBatchNorm, LeavesTheRunningMeanToBeReadAndWritten) {
  run_ranks(2, [](const Group& group) {
    torch::nn::BatchNorm1d norm(2);
    convert_sync_batchnorm(norm, group);
    norm->running_mean.fill_(3);
    EXPECT_TRUE(torch::equal(norm->named_buffers()["running_mean"], torch::full({2}, 3.0f)));
    norm->forward(torch::full({2, 2}, 1.0 + 2 * group->rank()));
    EXPECT_TRUE(close(norm->running_mean, torch::full({2}, 0.9f * 3 + 0.1f * 2), 1e-6));
    norm->reset_running_stats();
    EXPECT_EQ(norm->named_buffers()["running_mean"].abs().sum().item<float>(), 0);
    EXPECT_EQ(norm->running_mean.clone().key_set(), norm->running_var.key_set());
  });
}

TEST(ConvertSyncBatchNorm, LeavesAlonePlainNormsAndClones) {
  run_ranks(2, [](const Group& group) {
    torch::nn::BatchNorm1d norm(2), plain(2);
    convert_sync_batchnorm(norm, group);
    const auto clone = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone());
    if (group->rank() == 1) return;  // what remains is rank 0's alone
    const auto x = torch::randn({4, 2});
    EXPECT_TRUE(torch::equal(clone->forward(x), plain->forward(x)));
    EXPECT_TRUE(torch::equal(clone->running_mean, plain->running_mean));
  });
}

TEST(ConvertSyncBatchNorm, LetsARunningMeanOutliveItsModule) {
  run_ranks(2, [](const Group& group) {
    torch::Tensor mean;
    {
      torch::nn::BatchNorm1d norm(2);
      convert_sync_batchnorm(norm, group);
      mean = norm->running_mean;
    }
    const auto normed = torch::batch_norm(torch::full({2, 2}, 4.0 * group->rank()), {}, {}, mean, torch::ones({2}),
                                          true, 0.5, 0, false);
    EXPECT_TRUE(close(normed, torch::full({2, 2}, 2.0 * group->rank() - 1), 1e-6));
    EXPECT_TRUE(torch::equal(mean, torch::ones({2})));
  });
}

TEST(ConvertSyncBatchNorm, WarnsOnRankZeroOfAModuleWithoutBatchNorm) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    EXPECT_EQ(run([&] {
                const auto group = init_process_group({.environment = environment});
                EXPECT_EQ(convert_sync_batchnorm(Perceptron(), group), 0);
              }),
              0);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    EXPECT_EQ(count(outcome.output, "nothing was converted"), outcome.rank == 0 ? 1 : 0) << outcome.output;
  }
}

TEST(ConvertSyncBatchNorm, IsRefusedOnceTheModuleIsWrapped) {
  run_ranks(2, [](const Group& group) {
    Normed net;
    DistributedDataParallel model(net, group);
    for (const auto& text : {text_of<std::logic_error>([&] { convert_sync_batchnorm(net, group); }),
                             text_of<std::logic_error>([&] { convert_sync_batchnorm(model, group); })})
      EXPECT_TRUE(contains(text, "comes before DistributedDataParallel"));
  });
}

struct OwnNormImpl : torch::nn::Module {
  explicit OwnNormImpl(const Group& group) : norm(torch::nn::BatchNormOptions(3), group) {
    register_module("norm", norm);
  }
  torch::Tensor forward(torch::Tensor x) { return norm(x); }
  SyncBatchNorm norm;
};

TEST(SyncBatchNorm, DoesNotGoWithJoinWhichSaysSo) {
  run_ranks(2, [](const Group& group) {
    Normed net, plain;
    convert_sync_batchnorm(net, group);
    DistributedDataParallel converted(net, group), unconverted(plain, group);
    DistributedDataParallel own(std::make_shared<OwnNormImpl>(group), group);
    const auto refusal = [](auto& model) { return text_of<std::logic_error>([&] { (void)model->join(); }); };
    EXPECT_TRUE(contains(refusal(converted), "join() and the synchronised batch norm norm do not go together"));
    EXPECT_TRUE(contains(refusal(own), "synchronised batch norm norm do not go"));
    EXPECT_EQ(refusal(unconverted), "no such exception");
    converted(images(2, 1)).sum().backward();  // usable all the same
  });
}

}  // namespace
}  // namespace ddp
