// The fake accelerator's engine. Ranks are threads, each with a device of its own.
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "support/fake_device_backend.hpp"
#include "support/thrown.hpp"

namespace ddp::testing {
namespace {

using Words = std::vector<std::string>;
using Values = std::vector<float>;
using Tensors = std::vector<at::Tensor>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

class FakeDeviceBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    accelerator.reset();
    engine.polls_until_progress = -1;
    engine.is_early = engine.fails = false;
    engine.take_notes();
  }

  static Backend make(int rank, int ranks, const c10::intrusive_ptr<c10d::Store>& store) {
    comm::BackendSetup setup;
    setup.store = store;
    setup.environment.rank = setup.environment.local_rank = rank;
    setup.environment.world_size = setup.environment.local_world_size = ranks;
    setup.environment.master_address = "127.0.0.1";
    setup.device = at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(rank));
    return FakeDeviceBackend().make(setup);
  }
  static Backend make_alone() { return make(0, 1, c10::make_intrusive<c10d::HashStore>()); }

  static void with_ranks(int ranks, const std::function<void(c10d::Backend&, at::Device)>& body) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(rank));
        const c10::DeviceGuard guard(device);
        body(*make(rank, ranks, store), device);
      });
    for (auto& thread : threads) thread.join();
  }

  static Values values_of(const at::Tensor& tensor) {
    const auto copied = tensor.to(at::kFloat).cpu();
    return {copied.const_data_ptr<float>(), copied.const_data_ptr<float>() + copied.numel()};
  }
  static float first_in_memory(const at::Tensor& tensor) { return *static_cast<const float*>(tensor.const_data_ptr()); }

  FakeAccelerator& accelerator = fake_accelerator();
  FakeEngineState& engine = fake_engine();
};

c10d::AllreduceOptions mean() {
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  return options;
}

TEST_F(FakeDeviceBackendTest, ReducesBetweenWhatCameBeforeAndWhatWaits) {
  with_ranks(2, [](c10d::Backend& backend, at::Device device) {
    Tensors x{torch::zeros({3}, device)};
    x[0].add_(static_cast<float>(backend.getRank()));
    const auto work = backend.allreduce(x, mean());
    EXPECT_NE(first_in_memory(x[0]), 0.5F);
    work->synchronize();
    EXPECT_EQ(values_of(x[0]), (Values{0.5, 0.5, 0.5}));
    EXPECT_TRUE(work->isCompleted() && work->isSuccess());
  });
}

TEST_F(FakeDeviceBackendTest, GivesOldValuesToWhoDoesNotWait) {
  Tensors x{torch::ones({1}, kFakeDevice)};
  accelerator.run_all();
  const auto backend = make_alone();
  c10d::AllreduceOptions sum;
  {
    const c10::StreamGuard guard(accelerator.stream(1));  // on which nothing makes x wait for this
    x[0].add_(1);
  }
  const auto work = backend->allreduce(x, sum);
  EXPECT_EQ(values_of(x[0]), (Values{1}));
  EXPECT_FALSE(work->isCompleted());
  work->wait();
  EXPECT_EQ(values_of(x[0]), (Values{1})) << "stream 1 was not waited for";
}

TEST_F(FakeDeviceBackendTest, BeginsAsEarlyAsAllowedIfItIsTold) {
  const auto backend = make_alone();
  for (const bool is_early : {false, true}) {
    engine.is_early = is_early;
    Tensors x{torch::zeros({1}, kFakeDevice)};
    const auto work = backend->allreduce(x, mean());
    EXPECT_EQ(first_in_memory(x[0]) == 0, is_early) << "it has made the caller's stream go on";
    accelerator.run_all();
    EXPECT_TRUE(work->isSuccess());
  }
}

TEST_F(FakeDeviceBackendTest, HasTheReductions) {
  with_ranks(2, [](c10d::Backend& backend, at::Device device) {
    const auto own = torch::full({2}, static_cast<float>(backend.getRank() + 1), device);
    const auto reduced = [&](c10d::ReduceOp op) {
      Tensors x{own.clone()};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      backend.allreduce(x, options)->wait();
      return values_of(x[0]);
    };
    EXPECT_EQ(reduced(c10d::ReduceOp::SUM), (Values{3, 3}));
    EXPECT_EQ(reduced(c10d::ReduceOp::MIN), (Values{1, 1}));
    EXPECT_EQ(reduced(c10d::ReduceOp::MAX), (Values{2, 2}));
    EXPECT_EQ(reduced(c10d::ReduceOp::PRODUCT), (Values{2, 2}));
    Tensors pair{own.clone(), own + 10};
    backend.allreduce_coalesced(pair, {})->wait();
    EXPECT_EQ(values_of(pair[0]), (Values{3, 3}));
    EXPECT_EQ(values_of(pair[1]), (Values{23, 23}));
    Tensors x{own.clone()};
    backend.reduce(x, {})->wait();
    if (backend.getRank() == 0) {
      EXPECT_EQ(values_of(x[0]), (Values{3, 3}));
    }
  });
}

TEST_F(FakeDeviceBackendTest, HasTheOtherCollectives) {
  with_ranks(2, [](c10d::Backend& backend, at::Device device) {
    const bool is_first = backend.getRank() == 0;
    const auto own = torch::full({2}, is_first ? 1.F : 2.F, device);
    const auto list = [&] { return Tensors{torch::zeros({2}, device), torch::zeros({2}, device)}; };
    Tensors x{own.clone()};
    std::vector<Tensors> all{list()}, gathered, none, parts{Tensors{own + 1, own + 2}};
    backend.allgather(all, x, {})->wait();
    EXPECT_EQ(values_of(all[0][1]), (Values{2, 2}));
    if (is_first) gathered = {list()};
    backend.gather(gathered, x, {})->wait();
    EXPECT_EQ(is_first ? values_of(gathered[0][1]) : Values{}, is_first ? (Values{2, 2}) : Values{});
    backend.scatter(x, is_first ? parts : none, {})->wait();
    EXPECT_EQ(values_of(x[0]), is_first ? (Values{2, 2}) : (Values{3, 3}));
    c10d::BroadcastOptions from_one;
    from_one.rootRank = 1;
    backend.broadcast(x, from_one)->wait();
    EXPECT_EQ(values_of(x[0]), (Values{3, 3}));

    auto output = torch::zeros({2}, device), input = torch::tensor({10.F, 20.F}).to(device) + own;
    std::vector<int64_t> even;
    backend.alltoall_base(output, input, even, even, {})->wait();
    EXPECT_EQ(values_of(output), is_first ? (Values{11, 12}) : (Values{21, 22}));
    x = {own.clone()};
    (is_first ? backend.send(x, 1, 7) : backend.recv(x, 0, 7))->wait();
    EXPECT_EQ(values_of(x[0]), (Values{1, 1}));
    backend.barrier({})->wait();
  });
}

TEST_F(FakeDeviceBackendTest, GoesOnByItselfWhenItIsAskedOftenEnough) {
  engine.polls_until_progress = 3;
  const auto backend = make_alone();
  Tensors x{torch::ones({1}, kFakeDevice)};
  const auto work = backend->allreduce(x, mean());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(work->isCompleted());
  while (!work->isCompleted()) std::this_thread::yield();
  EXPECT_EQ(first_in_memory(x[0]), 1);
}

TEST_F(FakeDeviceBackendTest, KeepsTensorsUntilTheCallIsDone) {
  const auto backend = make_alone();
  const auto before = accelerator.live_bytes();
  Tensors x{torch::ones({1000}, kFakeDevice)};
  const auto work = backend->allreduce(x, mean());
  x.clear();
  accelerator.run(accelerator.stream(0));
  EXPECT_EQ(accelerator.live_bytes() - before, 4000);
  accelerator.run_all();
  EXPECT_TRUE(work->isCompleted());
  EXPECT_EQ(accelerator.live_bytes(), before);
}

TEST_F(FakeDeviceBackendTest, EndsPendingAndLaterCallsOnceItIsAborted) {
  engine.polls_until_progress = 0;
  std::latch is_aborted(1);
  with_ranks(2, [&](c10d::Backend& backend, at::Device device) {
    if (backend.getRank() == 1) return is_aborted.wait();
    Tensors x{torch::ones({1}, device)};
    const auto pending = backend.allreduce(x, mean());
    EXPECT_FALSE(pending->isCompleted()) << "under way, and the other rank never comes";
    EXPECT_FALSE(pending->exception());
    backend.abort();
    is_aborted.count_down();
    const auto later = backend.allreduce(x, mean());
    for (const auto& work : {pending, later}) {
      EXPECT_TRUE(work->isCompleted());
      EXPECT_FALSE(work->isSuccess());
      EXPECT_EQ(error_of([&] { work->wait(); }), "the communicator was aborted");
    }
    EXPECT_EQ(values_of(x[0]).size(), 1u) << "nor does the stream wait any more";
  });
}

TEST_F(FakeDeviceBackendTest, FailsWhenItIsTold) {
  engine.fails = true;
  const auto backend = make_alone();
  Tensors x{torch::ones({1}, kFakeDevice)};
  const auto work = backend->allreduce(x, mean());
  EXPECT_FALSE(work->exception());
  accelerator.run_all();
  EXPECT_EQ(error_of([&] { work->wait(); }), "the device failed");
}

TEST_F(FakeDeviceBackendTest, NotesWhatItIsAsked) {
  const FakeDeviceBackend fake;
  fake.take(kFakeDevice);
  const auto own = std::to_string(accelerator.new_stream(kFakeDevice, 0).id() + 1);
  const auto backend = make_alone();
  Tensors x{backend->allocateTensor(10, at::kFloat)};
  {
    const c10::StreamGuard guard(accelerator.stream(1));
    backend->allreduce(x, mean())->synchronize();
  }
  backend->abort();
  EXPECT_EQ(engine.take_notes(),
            (Words{"take 0", "make on 0", "allocate 10", "allreduce avg 40 on stream " + own + " while current was 1",
                   "1 waits for allreduce avg 40", "abort"}));
}

TEST_F(FakeDeviceBackendTest, RefusesToBeAskedWhileItIsCaptured) {
  const auto backend = make_alone();
  Tensors x{torch::ones({1}, kFakeDevice)};
  accelerator.is_capturing = true;
  EXPECT_TRUE(FakeDeviceBackend().is_capturing(kFakeDevice));
  const auto work = backend->allreduce(x, mean());
  work->synchronize();
  EXPECT_THROW(work->isCompleted(), c10::Error);
  accelerator.is_capturing = false;
}

TEST_F(FakeDeviceBackendTest, NamesItsDevicesAsOneOrMany) {
  const FakeDeviceBackend fake;
  EXPECT_NE(fake.identity(kFakeDevice).device, fake.identity(kSecondFakeDevice).device);
  engine.is_shared = true;
  EXPECT_EQ(fake.identity(kFakeDevice).device, fake.identity(kSecondFakeDevice).device);
  engine.is_shared = false;
  EXPECT_EQ(fake.visible(), kFakeDevices);
}

}  // namespace
}  // namespace ddp::testing
