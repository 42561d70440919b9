#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "ddp/prefetch.hpp"
#include "fake_accelerator.hpp"

namespace ddp {
namespace {

using testing::fake_accelerator;
using testing::kFakeDevice;
using Words = std::vector<std::string>;
using Example = torch::data::Example<>;

/// The values of a tensor on the fake device, whose memory is this process's.
std::vector<float> values_of(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.device(), kFakeDevice);
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  std::memcpy(values.data(), tensor.const_data_ptr(), tensor.nbytes());
  return values;
}

class DeviceCopierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    accelerator.notes.clear();
    accelerator.pinnings = 0;
  }
  testing::FakeAccelerator& accelerator = fake_accelerator();
};

TEST_F(DeviceCopierTest, CopiesFromPinnedMemoryOnItsOwnStreamForWhichTheCurrentOneWaits) {
  DeviceCopier copier(kFakeDevice);
  Example batch(torch::full({2}, 3.F), torch::full({1}, 4.F));
  copier.start(batch);
  EXPECT_EQ(accelerator.notes, (Words{"copy on 1 from pinned", "copy on 1 from pinned", "record 1"}));
  EXPECT_EQ(accelerator.current, 0);
  EXPECT_NE(values_of(batch.data), (std::vector<float>{3, 3})) << "is not copied yet";
  accelerator.notes.clear();
  copier.finish();
  EXPECT_EQ(accelerator.notes, (Words{"0 waits", "keep for 0", "keep for 0"}));
  EXPECT_EQ(values_of(batch.data), (std::vector<float>{3, 3}));
  EXPECT_EQ(values_of(batch.target), (std::vector<float>{4}));
}

TEST_F(DeviceCopierTest, ServesTheStreamThatIsCurrentWhenItFinishes) {
  DeviceCopier copier(kFakeDevice);
  auto batch = torch::ones({2});
  copier.start(batch);
  accelerator.current = 7;
  copier.finish();
  EXPECT_EQ(accelerator.notes, (Words{"copy on 1 from pinned", "record 1", "7 waits", "keep for 7"}));
  accelerator.current = 0;
}

TEST_F(DeviceCopierTest, PinsWhatIsNotPinnedYet) {
  DeviceCopier copier(kFakeDevice);
  auto pageable = torch::ones({2});
  auto pinned = pageable.pin_memory();
  ASSERT_EQ(accelerator.pinnings, 1);
  copier.start(pinned);
  copier.finish();
  EXPECT_EQ(accelerator.pinnings, 1);
  copier.start(pageable);
  copier.finish();
  EXPECT_EQ(accelerator.pinnings, 2);
}

TEST_F(DeviceCopierTest, LeavesWhatIsOnTheDeviceToTheCurrentStream) {
  DeviceCopier copier(kFakeDevice);
  const auto there = torch::ones({2}).to(kFakeDevice);
  accelerator.notes.clear();
  auto batch = std::vector{there, at::Tensor()};
  copier.start(batch);
  EXPECT_TRUE(batch[0].is_same(there));
  EXPECT_FALSE(batch[1].defined());
  copier.finish();
  EXPECT_EQ(accelerator.notes, (Words{"record 1", "0 waits"}));
}

TEST_F(DeviceCopierTest, ForgetsABatchThatWasNeverFinished) {
  DeviceCopier copier(kFakeDevice);
  auto lost = torch::ones({2});
  copier.start(lost);
  auto batch = torch::zeros({2});
  copier.start(batch);
  copier.finish();
  EXPECT_EQ(values_of(batch), (std::vector<float>{0, 0}));
  EXPECT_EQ(accelerator.notes.back(), "keep for 0");
  EXPECT_EQ(std::count(accelerator.notes.begin(), accelerator.notes.end(), "keep for 0"), 1);
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
