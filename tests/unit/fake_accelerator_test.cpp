#include "support/fake_accelerator.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/fake_module.hpp"

namespace ddp::testing {
namespace {

using Words = std::vector<std::string>;
using Values = std::vector<float>;

constexpr auto kType = c10::DeviceType::PrivateUse1;

class FakeAcceleratorTest : public ::testing::Test {
 protected:
  void SetUp() override { accelerator.reset(); }
  void TearDown() override { accelerator.reset(); }

  /// As the current stream finds them.
  static Values values_of(const at::Tensor& tensor) {
    const auto copied = tensor.to(at::kFloat).cpu();
    return {copied.const_data_ptr<float>(), copied.const_data_ptr<float>() + copied.numel()};
  }
  /// As they are in the memory at this moment.
  static float first_in_memory(const at::Tensor& tensor) { return *static_cast<const float*>(tensor.const_data_ptr()); }

  FakeAccelerator& accelerator = fake_accelerator();
  const c10::Stream side = FakeAccelerator::stream(1);
  const float fresh = values_of(at::empty({1}, kFakeDevice))[0];
};

TEST_F(FakeAcceleratorTest, ComputesOnTheStreamThatIsCurrent) {
  const auto x = torch::ones({2}, kFakeDevice);
  EXPECT_EQ(first_in_memory(x), fresh) << "not written before somebody needs it";
  EXPECT_EQ(values_of(x + x), (Values{2, 2}));
  EXPECT_EQ(first_in_memory(x), 1);
}

TEST_F(FakeAcceleratorTest, ShowsAStreamThatDoesNotWaitWhatWasThereBefore) {
  auto x = torch::zeros({2}, kFakeDevice);
  accelerator.run_all();
  x.add_(5);
  {
    const c10::StreamGuard guard(side);
    EXPECT_EQ(values_of(x * 1), (Values{0, 0}));
  }
  EXPECT_EQ(values_of(x), (Values{5, 5}));
}

TEST_F(FakeAcceleratorTest, ShowsAStreamThatWaitsByAnEventWhatWasWritten) {
  auto x = torch::zeros({2}, kFakeDevice);
  accelerator.run_all();
  x.add_(5);
  c10::Event event(kType);
  event.record(accelerator.stream(0));
  event.block(side);
  EXPECT_FALSE(event.query());
  x.add_(1);
  {
    const c10::StreamGuard guard(side);
    EXPECT_EQ(values_of(x * 1), (Values{5, 5})) << "and not what came after the event";
  }
  EXPECT_TRUE(event.query());
  EXPECT_EQ(values_of(x), (Values{6, 6}));
}

TEST_F(FakeAcceleratorTest, CopiesWhenTheHostWaitsForIt) {
  const auto pinned = torch::full({1}, 3.F).pin_memory();
  const auto by_stream = pinned.to(kFakeDevice, true);
  accelerator.run(side);
  EXPECT_EQ(first_in_memory(by_stream), fresh);
  accelerator.stream(0).synchronize();
  EXPECT_EQ(first_in_memory(by_stream), 3);

  const auto by_event = pinned.to(kFakeDevice, true);
  c10::Event event(kType);
  event.record(accelerator.stream(0));
  event.synchronize();
  EXPECT_EQ(first_in_memory(by_event), 3);

  const auto by_device = pinned.to(kFakeDevice, true);
  EXPECT_FALSE(accelerator.stream(0).query());
  c10::impl::getDeviceGuardImpl(kType)->synchronizeDevice(0);
  EXPECT_EQ(first_in_memory(by_device), 3);
  EXPECT_TRUE(accelerator.stream(0).query());
}

TEST_F(FakeAcceleratorTest, ReadsPinnedMemoryWhenItCopiesAndOtherMemoryAtOnce) {
  auto pinned = torch::full({1}, 3.F).pin_memory(), pageable = torch::full({1}, 3.F);
  const auto from_pinned = pinned.to(kFakeDevice, true), from_pageable = pageable.to(kFakeDevice, true);
  EXPECT_EQ(first_in_memory(from_pageable), fresh);
  pinned.fill_(4);
  pageable.fill_(4);
  EXPECT_EQ(values_of(from_pinned), (Values{4}));
  EXPECT_EQ(values_of(from_pageable), (Values{3}));
}

TEST_F(FakeAcceleratorTest, CopiesBackToPinnedMemoryLate) {
  const auto x = torch::full({1}, 3.F, kFakeDevice);
  auto pinned = torch::zeros({1}).pin_memory();
  pinned.copy_(x, true);
  EXPECT_EQ(pinned.item<float>(), 0);
  accelerator.stream(0).synchronize();
  EXPECT_EQ(pinned.item<float>(), 3);
}

TEST_F(FakeAcceleratorTest, OverwritesWhatIsFreedWhileAnotherStreamHasToReadIt) {
  for (const bool keep : {false, true}) {
    auto x = torch::ones({300}, kFakeDevice);
    auto y = torch::zeros({300}, kFakeDevice);
    c10::Event written(kType);
    written.record(accelerator.stream(0));
    written.block(side);
    {
      const c10::StreamGuard guard(side);
      y.copy_(x);
    }
    if (keep) x.record_stream(side);
    x = at::Tensor();
    accelerator.run(accelerator.stream(0));
    accelerator.run(side);
    EXPECT_EQ(first_in_memory(y) == 1, keep);
  }
}

TEST_F(FakeAcceleratorTest, AllocatesAgainOnlyWhatNoStreamHasToReadAnyMore) {
  auto x = torch::ones({77}, kFakeDevice);
  const auto* const memory = x.const_data_ptr();
  x.record_stream(side);
  c10::Event later(kType);
  later.record(side);
  accelerator.streams.add(FakeAccelerator::key(side), [] { return true; });
  x = at::Tensor();
  accelerator.run(accelerator.stream(0));
  EXPECT_NE(at::empty({77}, kFakeDevice).const_data_ptr(), memory);
  accelerator.run(side);
  EXPECT_EQ(at::empty({77}, kFakeDevice).const_data_ptr(), memory);
}

TEST_F(FakeAcceleratorTest, CountsWhatIsAliveOnEachDevice) {
  const auto before = accelerator.live_bytes(), before_second = accelerator.live_bytes(1);
  auto* const allocator = c10::getDeviceAllocator(kType);
  {
    const auto x = at::empty({10}, kFakeDevice), y = at::empty({5}, kSecondFakeDevice);
    EXPECT_EQ(y.device(), kSecondFakeDevice);
    EXPECT_EQ(accelerator.live_bytes(0) - before, 40);
    EXPECT_EQ(accelerator.live_bytes(1) - before_second, 20);
    EXPECT_EQ(allocator->getDeviceStats(0).allocated_bytes[0].current, accelerator.live_bytes(0));
  }
  EXPECT_EQ(accelerator.live_bytes(0), before);
  EXPECT_EQ(accelerator.live_bytes(1), before_second);
}

TEST_F(FakeAcceleratorTest, HasAContextWhereItHasAllocatedOrIsToldSo) {
  EXPECT_TRUE(accelerator.has_context(0));
  accelerator.set_context(1, false);
  EXPECT_FALSE(at::globalContext().getAcceleratorHooksInterface(kType).hasPrimaryContext(1));
  accelerator.set_context(1, std::nullopt);
  const auto x = at::empty({1}, kSecondFakeDevice);
  EXPECT_TRUE(at::globalContext().getAcceleratorHooksInterface(kType).hasPrimaryContext(1));
}

TEST_F(FakeAcceleratorTest, CopiesBetweenDevicesInTheOrderOfBoth) {
  const auto x = torch::full({2}, 3.F, kFakeDevice);
  const auto y = x.to(kSecondFakeDevice, true);
  EXPECT_EQ(values_of(y), (Values{3, 3}));
  EXPECT_EQ(values_of((y + 1).to(kFakeDevice)), (Values{4, 4}));
}

TEST_F(FakeAcceleratorTest, HasStreamsOfItsPoolAndNewOnesWithTheirPriorities) {
  const auto* const guard = c10::impl::getDeviceGuardImpl(kType);
  EXPECT_EQ(guard->getStreamFromGlobalPool(kFakeDevice, true), accelerator.stream(1));
  EXPECT_EQ(guard->getStreamFromGlobalPool(kFakeDevice, false), accelerator.stream(2));
  EXPECT_EQ(accelerator.priority(accelerator.stream(1)), -1);
  EXPECT_EQ(accelerator.priority(accelerator.stream(2)), 0);
  const auto first = guard->getNewStream(kFakeDevice, -2), second = guard->getNewStream(kFakeDevice);
  EXPECT_NE(first, second);
  EXPECT_EQ(accelerator.priority(first), -2);
}

TEST_F(FakeAcceleratorTest, RefusesToBeAskedWhileItIsCaptured) {
  c10::Event event(kType);
  event.record(side);
  accelerator.is_capturing = true;
  EXPECT_THROW(event.query(), c10::Error);
  EXPECT_THROW(event.synchronize(), c10::Error);
  EXPECT_THROW(side.query(), c10::Error);
  EXPECT_THROW(side.synchronize(), c10::Error);
  accelerator.is_capturing = false;
  EXPECT_TRUE(event.query());
}

TEST_F(FakeAcceleratorTest, GivesEachThreadItsCurrentStream) {
  const c10::StreamGuard guard(side);
  c10::StreamId other = -1;
  std::thread([&] { other = FakeAccelerator::current(); }).join();
  EXPECT_EQ(other, 0);
  EXPECT_EQ(FakeAccelerator::current(), 1);
}

TEST_F(FakeAcceleratorTest, NotesWhatIsAskedOfIt) {
  accelerator.take_notes();
  const auto x = torch::ones({2}).pin_memory().to(kFakeDevice, true);
  c10::Event event(kType);
  event.record(accelerator.stream(0));
  event.block(side);
  x.record_stream(side);
  event.synchronize();
  EXPECT_EQ(accelerator.take_notes(),
            (Words{"copy on 0 from pinned", "record 0", "1 waits", "keep for 1", "host waits for 0"}));
}

TEST_F(FakeAcceleratorTest, HasOperatorsThatChangeListsAndViewsAndSizes) {
  const auto flat = torch::zeros({6}, kFakeDevice);
  std::vector<at::Tensor> parts{flat.narrow(0, 0, 2), flat.narrow(0, 2, 4).view({2, 2}).t()};
  const std::vector<at::Tensor> values{torch::ones({2}, kFakeDevice),
                                       torch::tensor({{2.F, 3.F}, {4.F, 5.F}}).to(kFakeDevice)};
  at::_foreach_copy_(parts, values);
  at::_foreach_mul_(parts, 2);
  at::_foreach_add_(parts, values);
  EXPECT_EQ(values_of(flat), (Values{3, 3, 6, 12, 9, 15}));
  auto resized = at::empty({0}, kFakeDevice);
  at::cat_out(resized, {parts[0], flat.narrow(0, 2, 1)});
  EXPECT_EQ(values_of(resized), (Values{3, 3, 6}));
  resized.resize_({5}).narrow(0, 3, 2).zero_();
  EXPECT_EQ(values_of(resized), (Values{3, 3, 6, 0, 0}));
  EXPECT_EQ(values_of(flat.index({flat > 6})), (Values{12, 9, 15}));
  EXPECT_EQ(flat.sum().item<float>(), 48);
  auto other = at::empty({0}, kFakeDevice);
  other.set_(flat.storage(), 2, {2}, {3});
  EXPECT_EQ(values_of(other), (Values{6, 15}));
}

torch::nn::Sequential network() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)),
                               torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                               torch::nn::Flatten(), torch::nn::Linear(4 * 3 * 3, 5), torch::nn::Dropout(0));
}

/// The losses, then all parameters, buffers and the outcome of a call without training.
std::vector<at::Tensor> trained(c10::Device device) {
  auto net = network();
  move_to(*net, device);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  std::vector<at::Tensor> results;
  torch::manual_seed(4);
  for (int step = 0; step < 4; ++step) {
    const auto images = torch::randn({6, 2, 6, 6}).to(device);
    const auto labels = torch::randint(5, {6}).to(device);
    optimizer.zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(net->forward(images), labels);
    loss.backward();
    optimizer.step();
    results.push_back(loss.detach().cpu());
  }
  for (const auto& parameter : net->parameters()) results.push_back(parameter.detach().cpu());
  for (const auto& buffer : net->buffers()) results.push_back(buffer.cpu());
  net->eval();
  results.push_back(net->forward(torch::ones({1, 2, 6, 6}).to(device)).detach().cpu());
  return results;
}

TEST_F(FakeAcceleratorTest, TrainsAsTheCpuDoes) {
  const auto expected = trained(at::kCPU);
  for (const auto device : {kFakeDevice, kSecondFakeDevice}) {
    const auto results = trained(device);
    ASSERT_EQ(results.size(), expected.size());
    for (std::size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].allclose(expected[i])) << i << device;
  }
}

TEST_F(FakeAcceleratorTest, TrainsOnAnotherStreamThanTheFirst) {
  const auto expected = trained(at::kCPU);
  accelerator.run_all();
  const c10::StreamGuard guard(side);
  const auto results = trained(kFakeDevice);
  for (std::size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].allclose(expected[i])) << i;
}

}  // namespace
}  // namespace ddp::testing
