// What data-parallel training costs in memory.

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "ddp/distributed_data_parallel.hpp"
#include "reduce/flat_parameters.hpp"
#include "support/ranks.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;

constexpr std::int64_t kParameters = 50, kElements = 1 << 20;  // 200 MiB of float32

// A line of smaps_rollup: "Rss:" and others.
std::int64_t resident_bytes(const std::string& kind) {
  std::ifstream status("/proc/self/smaps_rollup");
  for (std::string word; status >> word;)
    if (word == kind) {
      std::int64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * 1024;
    }
  return -1;
}

// What this rank's memory comes to: its private pages, and its part of the memory that two ranks share.
std::int64_t held_bytes() {
  std::int64_t shared = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat file{};
    std::error_code ignored;
    if (std::filesystem::read_symlink(entry, ignored).string().starts_with("/memfd:") &&
        ::stat(entry.path().c_str(), &file) == 0)
      shared += file.st_blocks * 512;
  }
  return resident_bytes("Pss_Anon:") + resident_bytes("Pss_File:") + shared / 2;
}

struct WideImpl : torch::nn::Module {
  explicit WideImpl(std::int64_t elements) {
    for (int i = 0; i < kParameters; ++i)
      weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({elements})));
  }
  torch::Tensor forward(torch::Tensor x) {
    look();
    auto sum = x;
    for (const auto& weight : weights) sum = sum + weight.sum() * x;
    return sum;
  }
  void look() { peak = std::max(peak, held_bytes()); }
  std::vector<torch::Tensor> weights;
  std::int64_t peak = 0;
};

constexpr double kByte = 1.0 / (1 << 20);

void train(const std::shared_ptr<WideImpl>& net, const std::shared_ptr<ProcessGroup>& group, bool views, double cap) {
  DistributedDataParallel model(
      net, group,
      {.bucket_cap_mb = cap, .first_bucket_cap_mb = cap, .gradient_as_bucket_view = views, .keep_freed_memory = false});
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    model(torch::full({}, 1.0 + group->rank())).backward();
    net->look();
    for (const auto& weight : net->weights) EXPECT_EQ(weight.grad()[0].item<float>(), 1.5F);
  }
}

// Looked at when each gradient has come.
double peak_in_gradients(const std::shared_ptr<ProcessGroup>& group, bool views, double cap) {
  // Memory that is freed goes back at once: what the allocator would keep, some 30 MB, is not counted.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  train(std::make_shared<WideImpl>(1), group, views, cap);  // the code's own pages count as well: touch them before
  const auto net = std::make_shared<WideImpl>(kElements);
  const auto before = held_bytes();
  for (const auto& weight : net->weights) weight.register_hook([&net = *net](const torch::Tensor&) { net.look(); });
  train(net, group, views, cap);
  return static_cast<double>(net->peak - before) / static_cast<double>(kParameters * kElements * 4);
}

// A bucket for each parameter, PyTorch's default, and one bucket for all.
class MemoryWithBucketsOf : public ::testing::TestWithParam<double> {};
std::string name_of(const ::testing::TestParamInfo<double>& cap) {
  return std::vector<std::string>{"OneByte", "25MB", "10GB"}[cap.index];
}
INSTANTIATE_TEST_SUITE_P(Caps, MemoryWithBucketsOf, ::testing::Values(kByte, 25.0, 10240.0), name_of);

TEST_P(MemoryWithBucketsOf, HoldsGradientsOnceWithViews) {  // R33
  run_ranks(2, [this](const auto& group) { EXPECT_LE(peak_in_gradients(group, true, GetParam()), 1.1); });
}

TEST_P(MemoryWithBucketsOf, HoldsGradientsTwiceWithoutViews) {  // R33
  run_ranks(2, [this](const auto& group) {
    const auto peak = peak_in_gradients(group, false, GetParam());
    EXPECT_LE(peak, 2.1);
    EXPECT_GE(peak, 1.9);
  });
}

// The most that this process has held since the last call, beyond what it held then; as a part of the parameters.
class Peak {
 public:
  double take() {
    const auto peak = bytes("VmHWM:") - start_;
    std::ofstream("/proc/self/clear_refs") << '5';  // the mark is what is held now
    start_ = bytes("VmRSS:");
    return static_cast<double>(peak) / static_cast<double>(kParameters * kElements * 4);
  }

 private:
  static std::int64_t bytes(const std::string& kind) {
    std::ifstream status("/proc/self/status");
    std::int64_t kibibytes = -1;
    for (std::string word; status >> word;)
      if (word == kind) status >> kibibytes;
    return kibibytes * 1024;
  }
  std::int64_t start_ = 0;
};

TEST(Memory, HoldsParametersOnceAlsoWhileTheyAreLaidSideBySide) {
  run_ranks(1, [](const auto& group) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    const auto net = std::make_shared<WideImpl>(kElements);
    std::vector<Parameter> parameters;
    for (const auto& weight : net->weights) parameters.push_back({"w" + std::to_string(parameters.size()), weight});
    Peak peak;
    peak.take();
    DistributedDataParallel model(net, group, {.keep_freed_memory = false, .flatten_parameters = true});
    EXPECT_LT(peak.take(), 0.05);
    FlatParameters().lay(parameters);  // the other way round, as another plan would have them
    EXPECT_LT(peak.take(), 0.05);
    for (const auto& weight : net->weights) EXPECT_EQ(weight[kElements - 1].template item<float>(), 1.0F);
    const auto before = resident_bytes("Rss:");
    const auto copies = at::cat(net->weights);  // and the measure sees a copy
    EXPECT_GT(peak.take(), 0.95);
    EXPECT_GT(resident_bytes("Rss:") - before, kParameters * kElements * 4 * 95 / 100);
  });
}

void expect_little_growth(int warm_up, int times, const std::function<void(int)>& act) {
  for (int i = 0; i < warm_up; ++i) act(i);
  malloc_trim(0);
  const auto before = resident_bytes("Rss:");
  for (int i = 0; i < times; ++i) act(i);
  // The allocator or the transport may hold a bucket for a while longer, which is no growth.
  auto growth = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 10; ++i) {
    act(i);
    malloc_trim(0);
    growth = std::min(growth, resident_bytes("Rss:") - before);
  }
  EXPECT_LT(growth, 2 << 20);
}

TEST(Memory, DoesNotGrowOverStepsOfChangingSizeAndRoute) {  // R24
  run_ranks(2, [](const auto& group) {
    for (const auto& options :
         {DistributedDataParallelOptions{}, DistributedDataParallelOptions{.find_unused_parameters = true}}) {
      Perceptron net(7, torch::kFloat);
      DistributedDataParallel model(net, group, options);
      expect_little_growth(50, 300, [&](int step) {
        const auto batch = Batch::of_step(step, 2 + 2 * (step % 40), torch::kFloat);
        net->zero_grad();
        squared_error(model(batch.input), batch.target).backward();
        auto metric = torch::ones({step + 1});
        group->all_reduce(metric);
      });
    }
  });
}

TEST(Memory, ComesBackFromWrappersThatAreGone) {  // R24
  run_ranks(2, [](const auto& group) {
    expect_little_growth(5, 50, [&](int) {
      const auto net = std::make_shared<WideImpl>(1 << 14);  // 3 MiB
      DistributedDataParallel model(net, group);
      for (int step = 0; step < 2; ++step) model(torch::full({}, 1.0 + group->rank())).backward();
    });
  });
}

}  // namespace
}  // namespace ddp
