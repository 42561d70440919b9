#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ddp/prefetch.hpp"
#include "support/fake_accelerator.hpp"

namespace ddp {
namespace {

using testing::fake_accelerator;
using testing::kFakeDevice;
using Words = std::vector<std::string>;
using Example = torch::data::Example<>;

/// The values of a tensor on the fake device, as the current stream finds them.
std::vector<float> values_of(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.device(), kFakeDevice);
  const auto copied = tensor.cpu();
  return {copied.const_data_ptr<float>(), copied.const_data_ptr<float>() + copied.numel()};
}

class DeviceCopierTest : public ::testing::Test {
 protected:
  void SetUp() override { accelerator.reset(); }
  testing::FakeAccelerator& accelerator = fake_accelerator();
};

TEST_F(DeviceCopierTest, CopiesFromPinnedMemoryOnItsOwnStreamForWhichTheCurrentOneWaits) {
  DeviceCopier copier(kFakeDevice);
  Example batch(torch::full({2}, 3.F), torch::full({1}, 4.F));
  copier.start(batch);
  EXPECT_EQ(accelerator.take_notes(), (Words{"copy on 1 from pinned", "copy on 1 from pinned", "record 1"}));
  EXPECT_EQ(accelerator.current(), 0);
  EXPECT_NE(values_of(batch.data), (std::vector<float>{3, 3})) << "is not copied yet";
  accelerator.take_notes();
  copier.finish();
  EXPECT_EQ(accelerator.take_notes(), (Words{"0 waits", "keep for 0", "keep for 0"}));
  EXPECT_EQ(values_of(batch.data), (std::vector<float>{3, 3}));
  EXPECT_EQ(values_of(batch.target), (std::vector<float>{4}));
}

TEST_F(DeviceCopierTest, ServesTheStreamThatIsCurrentWhenItFinishes) {
  DeviceCopier copier(kFakeDevice);
  auto batch = torch::ones({2});
  copier.start(batch);
  const c10::StreamGuard guard(accelerator.stream(7));
  copier.finish();
  EXPECT_EQ(accelerator.take_notes(), (Words{"copy on 1 from pinned", "record 1", "7 waits", "keep for 7"}));
}

TEST_F(DeviceCopierTest, PinsWhatIsNotPinnedYet) {
  DeviceCopier copier(kFakeDevice);
  const auto before = accelerator.pinnings();
  auto pageable = torch::ones({2});
  auto pinned = pageable.pin_memory();
  ASSERT_EQ(accelerator.pinnings() - before, 1);
  copier.start(pinned);
  copier.finish();
  EXPECT_EQ(accelerator.pinnings() - before, 1);
  copier.start(pageable);
  copier.finish();
  EXPECT_EQ(accelerator.pinnings() - before, 2);
}

TEST_F(DeviceCopierTest, LeavesWhatIsOnTheDeviceToTheCurrentStream) {
  DeviceCopier copier(kFakeDevice);
  const auto there = torch::ones({2}).to(kFakeDevice);
  accelerator.take_notes();
  auto batch = std::vector{there, at::Tensor()};
  copier.start(batch);
  EXPECT_TRUE(batch[0].is_same(there));
  EXPECT_FALSE(batch[1].defined());
  copier.finish();
  EXPECT_EQ(accelerator.take_notes(), (Words{"record 1", "0 waits"}));
}

TEST_F(DeviceCopierTest, ForgetsABatchThatWasNeverFinished) {
  DeviceCopier copier(kFakeDevice);
  auto lost = torch::ones({2});
  copier.start(lost);
  auto batch = torch::zeros({2});
  copier.start(batch);
  copier.finish();
  const auto notes = accelerator.take_notes();
  EXPECT_EQ(values_of(batch), (std::vector<float>{0, 0}));
  EXPECT_EQ(notes.back(), "keep for 0");
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "keep for 0"), 1);
}

/// Sample i is [i].
struct Points : torch::data::datasets::BatchDataset<Points, Example> {
  Example get_batch(c10::ArrayRef<std::size_t> indices) override {
    const std::vector<std::int64_t> numbers(indices.begin(), indices.end());
    const auto batch = torch::tensor(numbers, torch::kFloat);
    return {batch, batch * 2};
  }
  std::optional<std::size_t> size() const override { return 7; }
};

TEST_F(DeviceCopierTest, GivesALoopTheValuesOfEachBatch) {
  const auto loader = make_data_loader(Points(), DistributedSampler(7, {.shuffle = false}), 3);
  std::vector<std::vector<float>> data, targets;
  for (auto& batch : prefetch(*loader, c10::DeviceType::PrivateUse1)) {
    data.push_back(values_of(batch.data));
    targets.push_back(values_of(batch.target));
  }
  EXPECT_EQ(data, (std::vector<std::vector<float>>{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(targets, (std::vector<std::vector<float>>{{0, 2, 4}, {6, 8, 10}, {12}}));
}

TEST(DeviceCopier, RefusesADeviceThatLibTorchWasNotBuiltFor) { EXPECT_THROW(DeviceCopier(at::kXPU), c10::Error); }

}  // namespace
}  // namespace ddp
