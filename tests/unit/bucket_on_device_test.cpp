// Buckets on a device whose streams run as late as allowed.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "reduce/bucket.hpp"
#include "support/fake_accelerator.hpp"

namespace ddp {
namespace {

using testing::FakeAccelerator;
using testing::kFakeDevice;
using Values = std::vector<float>;

class BucketOnDevice : public ::testing::Test {
 protected:
  void SetUp() override { accelerator.reset(); }
  void TearDown() override {
    bucket.reset();
    accelerator.reset();
  }

  static at::Tensor zeroed(std::int64_t bytes) {
    return torch::zeros({bytes}, at::device(kFakeDevice).dtype(at::kByte));
  }
  static at::Tensor filled(float value, std::int64_t count = 2) { return torch::full({count}, value, kFakeDevice); }
  static Values values_of(const at::Tensor& tensor) {
    const auto copied = tensor.cpu();
    return {copied.const_data_ptr<float>(), copied.const_data_ptr<float>() + copied.numel()};
  }
  /// Two slots of two elements.
  Bucket& make_bucket() {
    const auto parameters = std::vector{filled(0), filled(0)};
    return bucket.emplace(parameters, zeroed);
  }
  /// How often since the last call.
  std::ptrdiff_t noted(const std::string& words) {
    const auto notes = accelerator.take_notes();
    return std::count(notes.begin(), notes.end(), words);
  }

  FakeAccelerator& accelerator = testing::fake_accelerator();
  const c10::Stream side = FakeAccelerator::stream(1);
  const c10::Stream other = FakeAccelerator::stream(2);
  const Scale one{1};
  std::optional<Bucket> bucket;
};

TEST_F(BucketOnDevice, HoldsAGradientOfAnotherStreamOnceItIsSettled) {
  make_bucket();
  at::Tensor gradient;
  {
    const c10::StreamGuard guard(side);
    gradient = filled(1);
    gradient.add_(2);
    bucket->put(0, gradient, one);
  }
  bucket->put(1, filled(4), Scale(0.5));
  bucket->settle();
  EXPECT_EQ(values_of(bucket->flat()), (Values{3, 3, 2, 2}));
}

TEST_F(BucketOnDevice, LeavesTheSlotAsItIsUntilItIsSettled) {
  make_bucket();
  bucket->put(0, filled(3), one);
  EXPECT_EQ(values_of(bucket->flat()), (Values{0, 0, 0, 0}));
  bucket->settle();
  EXPECT_EQ(values_of(bucket->flat()), (Values{3, 3, 0, 0}));
}

TEST_F(BucketOnDevice, KeepsTheMemoryOfAGradientThatAnotherStreamHasFreed) {
  make_bucket();
  {
    const c10::StreamGuard guard(side);
    bucket->put(0, filled(3), one);  // nobody else holds it
  }
  accelerator.take_notes();
  bucket->settle();
  EXPECT_EQ(noted("keep for 0"), 1);
  accelerator.run(side);
  EXPECT_EQ(values_of(bucket->flat()), (Values{3, 3, 0, 0}));
}

TEST_F(BucketOnDevice, IsSettledForAnyStream) {
  make_bucket();
  bucket->put(0, filled(3), one);
  const c10::StreamGuard guard(side);
  bucket->settle();
  EXPECT_EQ(values_of(bucket->flat()), (Values{3, 3, 0, 0}));
}

TEST_F(BucketOnDevice, PacksAGradientBeforeAnotherIsAddedToIt) {
  make_bucket();
  bucket->put(0, filled(3), one);
  {
    const c10::StreamGuard guard(side);
    bucket->add(0, filled(4), Scale(2));
  }
  {
    const c10::StreamGuard guard(other);
    bucket->add(0, filled(1), one);
  }
  bucket->settle();
  EXPECT_EQ(values_of(bucket->flat()), (Values{12, 12, 0, 0}));
}

TEST_F(BucketOnDevice, ClearsASlotWhoseGradientWaits) {
  make_bucket();
  bucket->put(0, filled(3), one);
  {
    const c10::StreamGuard guard(side);
    bucket->clear(0);
  }
  bucket->settle();
  EXPECT_EQ(values_of(bucket->flat()), (Values{0, 0, 0, 0}));
}

TEST_F(BucketOnDevice, PacksNothingForASlotThatDoesNotWait) {
  make_bucket();
  bucket->put(0, filled(3), one);
  bucket->settle();
  bucket->put(1, filled(4), one);
  bucket->add(0, filled(1), one);
  EXPECT_EQ(values_of(bucket->flat()), (Values{4, 4, 0, 0}));
}

TEST_F(BucketOnDevice, TakesTheLastOfTwoGradientsForASlot) {
  make_bucket();
  bucket->put(0, filled(3), one);
  bucket->put(0, filled(5), one);
  EXPECT_EQ(values_of(bucket->flat()), (Values{3, 3, 0, 0})) << "not both in one kernel";
  bucket->settle();
  EXPECT_EQ(values_of(bucket->flat()), (Values{5, 5, 0, 0}));
}

TEST_F(BucketOnDevice, ShowsAGradientThatWaitsInItsView) {
  make_bucket();
  bucket->put(1, filled(3), one);
  EXPECT_EQ(values_of(bucket->view(1)), (Values{3, 3}));
}

TEST_F(BucketOnDevice, WaitsForWhatWasWrittenAfterItWasSettled) {
  make_bucket();
  bucket->put(0, filled(3), one);
  bucket->settle();
  // As the next backward's streams come behind the one that waited for the communication.
  c10::Event settled(kFakeDevice.type());
  settled.record(accelerator.stream(0));
  settled.block(side);
  {
    const c10::StreamGuard guard(side);
    bucket->put(1, filled(4), one);
    bucket->add(0, filled(1), one);
  }
  bucket->settle();
  EXPECT_EQ(values_of(bucket->flat()), (Values{4, 4, 4, 4}));
}

TEST_F(BucketOnDevice, WaitsForNobodyOnOneStream) {
  make_bucket();
  accelerator.take_notes();
  bucket->put(0, filled(3), one);
  bucket->clear(1);
  bucket->settle();
  EXPECT_EQ(noted("0 waits"), 0);
}

TEST_F(BucketOnDevice, IsZeroedBeforeAnotherStreamWrites) {
  make_bucket();
  {
    const c10::StreamGuard guard(side);
    bucket->add(0, filled(3), one);
    bucket->settle();
    EXPECT_EQ(values_of(bucket->flat()), (Values{3, 3, 0, 0}));
  }
  accelerator.run_all();
  EXPECT_EQ(values_of(bucket->flat()), (Values{3, 3, 0, 0}));
}

TEST_F(BucketOnDevice, KeepsItsMemoryForAStreamThatIsNotItsOwn) {
  make_bucket();
  accelerator.take_notes();
  const c10::StreamGuard guard(side);
  bucket->clear(0);
  EXPECT_EQ(noted("keep for 1"), 1);
}

TEST_F(BucketOnDevice, KeepsItsMemoryForTheStreamThatItIsSettledOn) {
  make_bucket();
  accelerator.take_notes();
  const c10::StreamGuard guard(side);
  bucket->settle();
  EXPECT_EQ(noted("keep for 1"), 1);
}

// The host's memory is written at once.
TEST_F(BucketOnDevice, IsNotForTheHost) {
  Bucket on_host({torch::ones({2})}, [](std::int64_t bytes) { return torch::zeros({bytes}, at::kByte); });
  on_host.put(0, torch::full({2}, 3.0F), one);
  EXPECT_EQ(values_of(on_host.flat()), (Values{3, 3}));
}

}  // namespace
}  // namespace ddp
