// In builds with the kernels. Where there is a GPU they run on it; without one they have to be done without.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "reduce/gradient_pack.hpp"

namespace ddp {
namespace {

const at::Device kGpu(at::kCUDA, 0);

// Gradients of odd sizes at odd places, and more than fit into one launch.
void expect_operators_bits(at::ScalarType dtype, double factor) {
  std::vector<std::int64_t> sizes{0, 1, 7, 4095, 4096, 4097, 1000003};
  sizes.resize(400, 5);
  std::int64_t elements = 0;
  for (const auto size : sizes) elements += size + 1;
  const auto flat = torch::zeros({elements}, at::device(kGpu).dtype(dtype));
  const auto memory = torch::randn({elements}, at::device(kGpu).dtype(at::kFloat)).to(dtype);
  GradientPack pack(kGpu, pack_function(kGpu));
  auto expected = flat.clone();
  std::int64_t offset = 0;
  for (const auto size : sizes) {
    pack.put(flat.narrow(0, offset, size), memory.narrow(0, offset + 1, size), Scale(factor));
    expected.narrow(0, offset, size).copy_(memory.narrow(0, offset + 1, size) * factor);
    offset += size + 1;
  }
  pack.pack();
  EXPECT_TRUE(torch::equal(flat, expected)) << dtype << ' ' << factor;
}

TEST(CudaPack, GivesTheOperatorsBitsOnAGpuAndIsLeftOutWithoutOne) {
  if (!torch::cuda::is_available()) {
    EXPECT_EQ(pack_function(kGpu), nullptr);
    EXPECT_EQ(pack_function(kGpu), nullptr);  // remembered
    return;
  }
  ASSERT_NE(pack_function(kGpu), nullptr);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16})
    for (const double factor : {1.0, 1.0 / 3}) expect_operators_bits(dtype, factor);
}

}  // namespace
}  // namespace ddp
