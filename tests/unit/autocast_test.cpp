#include "ddp/autocast.hpp"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>

namespace ddp {
namespace {

const at::Tensor kMatrix = torch::ones({2, 2});

at::ScalarType dtype_of_products() { return torch::mm(kMatrix, kMatrix).scalar_type(); }

TEST(Autocast, ComputesProductsInBfloat16OnTheCpuWhileItLives) {
  EXPECT_EQ(dtype_of_products(), at::kFloat);
  {
    const auto guard = autocast(at::kCPU);
    EXPECT_EQ(dtype_of_products(), at::kBFloat16);
  }
  EXPECT_EQ(dtype_of_products(), at::kFloat);
}

TEST(Autocast, LeavesParametersAndGradientsInFloat) {
  torch::nn::Linear layer(4, 3);
  torch::Tensor loss;
  {
    const auto guard = autocast(at::Device(at::kCPU));
    auto output = layer(torch::ones({2, 4}));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    loss = output.to(torch::kFloat).sum();
  }
  loss.backward();
  EXPECT_EQ(layer->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(layer->weight.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(layer->weight.grad(), torch::full({3, 4}, 2.0)));
}

TEST(Autocast, NestsWithOtherTypesAndWithNone) {
  const auto outer = autocast(at::kCPU);
  {
    const auto half = autocast(at::kCPU, {.dtype = at::kHalf});
    EXPECT_EQ(dtype_of_products(), at::kHalf);
    const auto none = autocast(at::kCPU, {.enabled = false});
    EXPECT_EQ(dtype_of_products(), at::kFloat);
  }
  EXPECT_EQ(dtype_of_products(), at::kBFloat16);
}

TEST(Autocast, ForgetsConvertedParametersAtItsEnd) {
  torch::nn::Linear layer(1, 1);
  const auto output = [&] {
    const auto guard = autocast(at::kCPU);
    return layer(torch::ones({1, 1})).item<float>();
  };
  torch::NoGradGuard no_grad;
  layer->bias.zero_();
  layer->weight.fill_(1);
  EXPECT_EQ(output(), 1);
  layer->weight.fill_(2);
  EXPECT_EQ(output(), 2);
}

TEST(Autocast, GivesBackTheCache) {
  ASSERT_TRUE(at::autocast::is_autocast_cache_enabled());
  {
    const auto guard = autocast(at::kCPU, {.cache_enabled = false});
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, RefusesOtherTypesAndDevicesWithoutSuchAMode) {
  EXPECT_THROW(Autocast(at::kCPU, {.dtype = at::kDouble}), std::invalid_argument);
  EXPECT_THROW(Autocast(at::kMeta, {}), std::invalid_argument);
  EXPECT_EQ(dtype_of_products(), at::kFloat);
}

}  // namespace
}  // namespace ddp
