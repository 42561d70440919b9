// Training on an accelerator, whose streams do everything as late as they may: results are those of one process on the
// CPU, and the host waits for the device nowhere.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/checkpoint.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/stop.hpp"
#include "support/device_ranks.hpp"
#include "support/fake_module.hpp"
#include "support/temp_folder.hpp"
#include "support/thrown.hpp"
#include "support/training.hpp"

namespace ddp::testing {
namespace {

constexpr int kWorld = 2;
constexpr std::int64_t kRows = 8;

DistributedDataParallelOptions with_small_buckets(DistributedDataParallelOptions options = {}) {
  options.bucket_cap_mb = options.first_bucket_cap_mb = 1e-6;
  return options;
}

torch::Tensor loss_of(auto&& model, const Batch& batch, at::Device device) {
  return squared_error(model(batch.input.to(device)), batch.target.to(device));
}

void expect_equal_weights(const torch::nn::Module& net, const torch::nn::Module& twin) {
  const auto expected = twin.named_parameters();
  for (const auto& entry : net.named_parameters())
    EXPECT_TRUE(torch::allclose(entry.value().detach().cpu(), expected[entry.key()], 1e-6, 1e-9)) << entry.key();
}

// A net on the device, and its twin in memory on all ranks' batches.
template <class Net>
void expect_equal_training(ProcessGroup& group, const DistributedDataParallelOptions& options) {
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>(), twin = std::make_shared<Net>();
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const torch::NoGradGuard no_grad;
    twin->parameters()[i].copy_(net->parameters()[i]);
  }
  move_to(*net, group.device());
  DistributedDataParallel model(net, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), options);
  const auto optimizer = sgd_with_momentum(net->parameters()), twins = sgd_with_momentum(twin->parameters());
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    twins->zero_grad();
    const auto batch = Batch::of_step(step, kRows);
    if (options.weight_by_samples) model->set_samples(kRows / kWorld);
    loss_of(model, batch.of_rank(group.rank(), kWorld), group.device()).backward();
    for (int rank = 0; rank < kWorld; ++rank)
      (loss_of(*twin, batch.of_rank(rank, kWorld), at::kCPU) / kWorld).backward();
    optimizer->step();
    twins->step();
  }
  expect_equal_weights(*net, *twin);
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_on_all_ranks(group, parameter.detach().cpu()));
}

struct CallablePerceptron : PerceptronImpl {
  torch::Tensor operator()(const torch::Tensor& x) { return forward(x); }
};

class DeviceTraining : public DeviceRanks, public ::testing::WithParamInterface<const char*> {
 protected:
  void on(int world, const Body& body) { run(world, GetParam(), body); }
};
INSTANTIATE_TEST_SUITE_P(Over, DeviceTraining, ::testing::Values("fake", "gloo", "shm"), name_of_way);

TEST_P(DeviceTraining, IsThatOfOneProcessOnTheCpu) {
  for (const bool views : {true, false})
    on(kWorld, [views](ProcessGroup& group, at::Device) {
      expect_equal_training<CallablePerceptron>(group, with_small_buckets({.gradient_as_bucket_view = views}));
      expect_equal_training<CallablePerceptron>(group, {.gradient_as_bucket_view = views});
    });
}

TEST_P(DeviceTraining, WithAStaticGraphUnusedParametersAndSampleCounts) {
  on(kWorld, [](ProcessGroup& group, at::Device) {
    expect_equal_training<CallablePerceptron>(group, with_small_buckets({.static_graph = true}));
    expect_equal_training<CallablePerceptron>(group, with_small_buckets({.find_unused_parameters = true}));
    expect_equal_training<CallablePerceptron>(group, with_small_buckets({.weight_by_samples = true}));
    expect_equal_training<CallablePerceptron>(group, with_small_buckets({.overlap_communication = false}));
  });
}

TEST_P(DeviceTraining, OfABatchNormSendsItsBuffers) {
  on(kWorld, [](ProcessGroup& group, at::Device device) {
    const auto net = std::make_shared<BatchNormedImpl>();
    move_to(*net, device);
    DistributedDataParallel model(net, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    for (int step = 0; step < 2; ++step)
      loss_of(model, Batch::of_step(step, kRows).of_rank(group.rank(), kWorld), device).backward();
    model(Batch::of_step(2, kRows).input.to(device));  // both see the same, behind rank 0's statistics
    EXPECT_TRUE(same_on_all_ranks(group, net->norm->running_mean.cpu()));
  });
}

TEST_P(DeviceTraining, OfHalfPrecisionHasBucketsOfIt) {
  on(kWorld, [](ProcessGroup& group, at::Device device) {
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      const auto net = std::make_shared<PerceptronImpl>(7, dtype);
      move_to(*net, device);
      DistributedDataParallel model(net, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
      const auto batch = Batch::of_step(0, kRows, dtype).of_rank(group.rank(), kWorld);
      loss_of(model, batch, device).backward();
      EXPECT_EQ(net->parameters()[0].grad().scalar_type(), dtype);
      EXPECT_TRUE(same_on_all_ranks(group, net->parameters()[0].grad().cpu()));
      EXPECT_GT(net->parameters()[0].grad().abs().sum().item<float>(), 0);
    }
  });
}

TEST_P(DeviceTraining, StopsOnAllRanksAfterTheSameStep) {
  on(kWorld, [](ProcessGroup& group, at::Device device) {
    const auto net = std::make_shared<PerceptronImpl>();
    move_to(*net, device);
    DistributedDataParallel model(net, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), with_small_buckets());
    for (int step = 0; step < 4; ++step) {
      EXPECT_FALSE(stop_requested());
      if (step == 3 && group.rank() == 1) request_stop();
      loss_of(model, Batch::of_step(step, kRows).of_rank(group.rank(), kWorld), device).backward();
    }
    EXPECT_TRUE(stop_requested());
  });
}

// Half of the forward, and so of the backward, on a stream of its own.
struct TwoStreamsImpl : torch::nn::Module {
  explicit TwoStreamsImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) {
    auto main = first(x);
    if (x.is_cpu()) return main + second(x);
    auto& accelerator = fake_accelerator();
    const auto home = accelerator.stream(0, x.device()), side = accelerator.stream(2, x.device());
    c10::Event begin(x.device().type()), end(x.device().type());
    begin.record(home);
    torch::Tensor other;
    {
      const c10::StreamGuard on_side(side);
      begin.block(side);
      other = second(x);
      end.record(side);
    }
    end.block(home);
    other.record_stream(home);
    return main + other;
  }
  torch::Tensor operator()(const torch::Tensor& x) { return forward(x); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 4));
};

TEST_P(DeviceTraining, TakesGradientsFromWhateverStreamTheyComeFrom) {
  on(kWorld, [](ProcessGroup& group, at::Device) {
    expect_equal_training<TwoStreamsImpl>(group, {});
    expect_equal_training<TwoStreamsImpl>(group, with_small_buckets());
  });
}

TEST_P(DeviceTraining, MovesInputsWhereDeviceIdsNamesTheDevice) {
  on(kWorld, [](ProcessGroup& group, at::Device device) {
    const auto net = std::make_shared<PerceptronImpl>();
    move_to(*net, device);
    const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
    DistributedDataParallel model(net, shared, {.device_ids = {device.index()}, .output_device = device.index()});
    EXPECT_EQ(model(Batch::of_step(0, kRows).input).device(), device);
    const auto refusal = [&](const DistributedDataParallelOptions& options) {
      return error_of<std::logic_error>(
          [&] { DistributedDataParallel(std::make_shared<PerceptronImpl>(), shared, options); });
    };
    const auto own = std::to_string(device.index());
    EXPECT_EQ(refusal({.device_ids = {7}}),
              "ddp: device_ids is 7, but this rank works on " + device.str() + "; give " + own + ", or leave it out");
    EXPECT_EQ(refusal({.device_ids = {0, 1}}),
              "ddp: device_ids names 2 devices, but a process works on one; start a process for each");
    EXPECT_NE(refusal({.output_device = 7}).find("output_device is 7"), std::string::npos);
  });
}

// R52: whatever device it was saved from, and every rank onto its own.
TEST_P(DeviceTraining, GoesOnFromACheckpointThatKnowsNoDevice) {
  const TempFolder folder;
  const auto path = folder.path() / "run.pt";
  on(kWorld, [&](ProcessGroup& group, at::Device device) {
    const std::shared_ptr<ProcessGroup> shared(&group, [](auto*) {});
    const auto run = [&](std::uint64_t seed, int steps, bool saves) {
      const auto net = std::make_shared<PerceptronImpl>(seed);
      move_to(*net, device);
      DistributedDataParallel model(net, shared);
      const auto optimizer = sgd_with_momentum(net->parameters());
      Checkpoint checkpoint(path, model, *optimizer);
      for (auto step = checkpoint.load_or_start().step; step < steps; ++step) {
        optimizer->zero_grad();
        loss_of(model, Batch::of_step(step, kRows).of_rank(group.rank(), kWorld), device).backward();
        optimizer->step();
        if (saves && step == 1) checkpoint.save({.step = 2});
      }
      for (const auto& parameter : net->parameters()) EXPECT_EQ(parameter.device(), device);
      for (const auto& [key, state] : optimizer->state())
        EXPECT_EQ(static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer().device(), device);
      return torch::nn::utils::parameters_to_vector(net->parameters()).cpu();
    };
    const auto whole = run(7, 4, true);
    EXPECT_TRUE(torch::equal(whole, run(99, 4, false)));
    const auto bytes = contents(path);
    EXPECT_EQ(bytes.find("fake:"), std::string::npos);
    EXPECT_EQ(bytes.find("privateuseone"), std::string::npos);
  });
}

// What no other way gives: the host goes on while the device has not even begun.
class DeviceEngine : public DeviceRanks {
 protected:
  static void train(int world,
                    const std::function<void(ProcessGroup&, PerceptronImpl&, const std::function<void(int)>&)>& body,
                    const DistributedDataParallelOptions& options) {
    run(world, kOnTheFake, [&](ProcessGroup& group, at::Device device) {
      const auto net = std::make_shared<PerceptronImpl>();
      move_to(*net, device);
      DistributedDataParallel model(net, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), options);
      const auto optimizer = sgd_with_momentum(net->parameters());
      std::vector<Batch> batches;  // on the device, for a graph cannot record their copying
      for (int step = 0; step < 5; ++step) {
        const auto batch = Batch::of_step(step, kRows).of_rank(group.rank(), group.size());
        batches.push_back({batch.input.to(device), batch.target.to(device)});
      }
      body(group, *net, [&](int step) {
        optimizer->zero_grad();
        loss_of(model, batches[static_cast<std::size_t>(step)], device).backward();
        optimizer->step();
      });
    });
  }
};

TEST_F(DeviceEngine, FormsTheMeanInTheCollectiveAndAHookTheSum) {
  train(kWorld,
        [](auto&, auto&, const auto& step) {
          step(0);
          fake_engine().take_notes();
          step(1);
          EXPECT_EQ(fake_engine_calls("allreduce avg"), 1);
        },
        {});
  train(kWorld,
        [](auto&, auto&, const auto& step) {
          step(0);
          fake_engine().take_notes();
          step(1);
          EXPECT_EQ(fake_engine_calls("allreduce sum"), 1);
        },
        {.comm_hook = bf16_compression()});
}

TEST_F(DeviceEngine, GivesTheBucketsTheirMemoryWhereThatIsWanted) {
  for (const bool wanted : {false, true})
    for (const auto& outcome : observe_ranks(kWorld, [&](const Environment& environment) {
           auto options = options_for(kOnTheFake, environment);
           options.nccl.register_memory = wanted;
           const auto group = init_process_group(options);
           const auto net = std::make_shared<PerceptronImpl>();
           move_to(*net, group->device());
           fake_engine().take_notes();
           DistributedDataParallel model(net, group);
           EXPECT_EQ(fake_engine_calls("allocate " + std::to_string(model->bucket_bytes())), wanted ? 1 : 0);
           group->shutdown();
         }))
      EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

TEST_F(DeviceEngine, IsNotWaitedForByTheHost) {
  train(
      kWorld,
      [](ProcessGroup&, auto&, const auto& step) {
        for (int i = 0; i < 3; ++i) step(i);
        fake_accelerator().take_notes();
        step(3);
        for (const auto& note : fake_accelerator().take_notes()) EXPECT_FALSE(note.starts_with("host waits")) << note;
      },
      with_small_buckets());
}

// The device's: the bucket's work begins once the one that packs it has, and ends before the means are there.
TEST_F(DeviceEngine, TellsTheTimesOfItsOwnWork) {
  run(kWorld, kOnTheFake, [](ProcessGroup& group, at::Device device) {
    const auto net = std::make_shared<PerceptronImpl>();
    move_to(*net, device);
    DistributedDataParallel model(net, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), with_small_buckets());
    for (int step = 0; step < 2; ++step)
      loss_of(model, Batch::of_step(step, kRows).of_rank(group.rank(), kWorld), device).backward();
    const auto& stats = model->reducer_stats();
    EXPECT_EQ(stats.step, 2);
    ASSERT_EQ(stats.buckets.size(), 8U);
    for (const auto& bucket : stats.buckets) {
      EXPECT_GT(bucket.full.count(), 0);
      EXPECT_GE(bucket.launched, bucket.full);
      EXPECT_GT(bucket.done, bucket.launched);
      EXPECT_LE(bucket.done, stats.backward + stats.exposed);
    }
    EXPECT_GT(stats.exposed.count(), 0);
  });
}

TEST_F(DeviceEngine, RecordsAStepIntoAGraphOnceTheStaticGraphIsKnown) {
  train(
      kWorld,
      [](ProcessGroup& group, auto&, const auto& step) {
        fake_accelerator().is_capturing = true;
        EXPECT_NE(error_of<GradientError>([&] { step(0); }).find("run at least two steps before"), std::string::npos);
        fake_accelerator().is_capturing = false;
        step(1);
        step(2);
        fake_accelerator().is_capturing = true;  // whoever waits for the device now throws
        step(3);
        fake_accelerator().is_capturing = false;
        group.barrier();
      },
      with_small_buckets({.static_graph = true}));
}

TEST_F(DeviceEngine, RecordsNoStepOfAGraphThatMayChange) {
  train(kWorld,
        [](ProcessGroup& group, auto&, const auto& step) {
          for (int i = 0; i < 3; ++i) step(i);
          fake_accelerator().is_capturing = true;
          EXPECT_NE(error_of<GradientError>([&] { step(3); }).find("with the option static_graph alone"),
                    std::string::npos);
          fake_accelerator().is_capturing = false;
          group.barrier();
        },
        {});
}

TEST_F(DeviceEngine, ARankThatHoldsMemoryOnAnotherDeviceIsToldAfterItsFirstStep) {
  for (const auto& outcome : observe_ranks(kWorld, [](const Environment& environment) {
         const auto group = init_process_group(options_for(kOnTheFake, environment));
         const auto net = std::make_shared<PerceptronImpl>();
         move_to(*net, group->device());
         DistributedDataParallel model(net, group);
         const auto stray = torch::zeros({1 << 20}, at::Device(group->device().type(), 3));
         for (int step = 0; step < 3; ++step) loss_of(model, Batch::of_step(step, kRows), group->device()).backward();
         group->shutdown();
       })) {
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    const std::string words =
        "this rank works on fake:" + std::to_string(outcome.rank) + ", but holds memory on fake:3";
    const auto found = outcome.output.find(words);
    EXPECT_NE(found, std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find(words, found + 1), std::string::npos) << "told twice";
  }
}

}  // namespace
}  // namespace ddp::testing
