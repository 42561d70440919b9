// Gradients packed on a GPU, by the kernel of ours where nvcc was there to compile it, and by LibTorch's operators.
#include <ATen/ops/mul.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <vector>

#include "gpu/gpus.hpp"
#include "reduce/gradient_pack.hpp"
#include "reduce/pack_layout.hpp"

namespace ddp::testing {
namespace {

#ifdef DDP_WITH_CUDA_KERNELS
constexpr bool kHasKernels = true;
#else
constexpr bool kHasKernels = false;
#endif

/// Slots with gaps in one flat memory, and gradients at odd places of another.
struct Slots {
  at::Tensor flat;
  std::vector<at::Tensor> slots, gradients;

  Slots(const std::vector<std::int64_t>& sizes, at::ScalarType dtype, at::Device gpu) {
    std::int64_t elements = 0;
    for (const auto size : sizes) elements += size + 1;
    flat = numbers(elements, dtype, gpu);
    const auto memory = numbers(elements + 1, dtype, gpu);
    std::int64_t offset = 0;
    for (const auto size : sizes) {
      slots.push_back(flat.narrow(0, offset, size));
      gradients.push_back(memory.narrow(0, offset + static_cast<std::int64_t>(gradients.size() % 2), size));
      offset += size + 1;
    }
  }
  static at::Tensor numbers(std::int64_t count, at::ScalarType dtype, at::Device gpu) {
    if (at::isComplexType(dtype)) return torch::randn({count}, torch::kComplexDouble).to(dtype).to(gpu);
    if (!at::isFloatingType(dtype)) return torch::randint(0, 2, {count}).to(dtype).to(gpu);
    return torch::randn({count}, torch::kDouble).to(dtype).to(gpu);
  }
  at::Tensor expected(double factor) const {
    auto result = flat.clone();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      auto out = result.narrow(0, slots[i].storage_offset(), slots[i].numel());
      if (factor == 1)
        out.copy_(gradients[i]);
      else
        at::mul_out(out, gradients[i], Scale(factor).tensor);
    }
    return result;
  }
};

std::vector<std::int64_t> odd_sizes() {
  constexpr std::int64_t chunk = pack::kChunkBytes / sizeof(float);
  return {0, 1, 3, 0, 7, 16, 33, chunk - 1, chunk, chunk + 1, 2 * chunk + 5, 40003, 1 << 20};
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return torch::equal(a.cpu().view(at::kByte), b.cpu().view(at::kByte));
}

void expect_packed(PackFunction function, at::Device gpu, const std::vector<std::int64_t>& sizes, at::ScalarType dtype,
                   double factor) {
  const Slots some(sizes, dtype, gpu);
  const auto expected = some.expected(factor);
  GradientPack pack(gpu, function);
  for (std::size_t i = 0; i < sizes.size(); ++i) pack.put(some.slots[i], some.gradients[i], Scale(factor));
  pack.pack();
  EXPECT_TRUE(same_bits(some.flat, expected)) << dtype << " x " << factor;
}

constexpr auto kMultiplied = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble};

class PackKernelOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kHasKernels) GTEST_SKIP() << "not run: this build has no kernels, for it found no nvcc";
  }
  static void with_kernel(const std::function<void(PackFunction kernel, at::Device gpu)>& body) {
    on_one_gpu([&](at::Device gpu) {
      torch::manual_seed(1);
      const auto kernel = pack_function(gpu);
      ASSERT_NE(kernel, nullptr) << "it was compiled, but does not load";
      body(kernel, gpu);
    });
  }
};

TEST_F(PackKernelOnGpu, GivesTheOperatorsBits) {
  with_kernel([](PackFunction kernel, at::Device gpu) {
    for (const auto dtype : kMultiplied)
      for (const double factor : {1.0, 0.5, 1.0 / 3, 1e-6}) expect_packed(kernel, gpu, odd_sizes(), dtype, factor);
    for (const auto dtype : {at::kBool, at::kByte, at::kShort, at::kInt, at::kLong})
      expect_packed(kernel, gpu, odd_sizes(), dtype, 1);
  });
}

TEST_F(PackKernelOnGpu, IsWhatPacksTheseDtypes) {
  with_kernel([](PackFunction kernel, at::Device gpu) {
    for (const auto dtype : kMultiplied) {
      const Slots some({5, 70000}, dtype, gpu);
      EXPECT_TRUE(kernel(some.slots, some.gradients, 0.5)) << dtype;
    }
  });
}

TEST_F(PackKernelOnGpu, TakesMoreSegmentsThanATableHolds) {
  with_kernel([](PackFunction kernel, at::Device gpu) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t i = 0; i < 3 * pack::Table::kSegments + 1; ++i) sizes.push_back(i % 11);
    expect_packed(kernel, gpu, sizes, at::kFloat, 0.1);
  });
}

TEST(PackOnGpu, OfOperatorsGivesTheSame) {
  on_one_gpu([](at::Device gpu) {
    torch::manual_seed(1);
    for (const auto dtype : kMultiplied)
      for (const double factor : {1.0, 1.0 / 3}) expect_packed(nullptr, gpu, odd_sizes(), dtype, factor);
  });
}

}  // namespace
}  // namespace ddp::testing
