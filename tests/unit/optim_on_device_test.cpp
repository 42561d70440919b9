// Parameters that are on a device, alone or beside others on the CPU, take LibTorch's own step there.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "ddp/optim.hpp"
#include "support/fake_accelerator.hpp"

namespace ddp::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors trained_on(at::Device device, bool limited) {
  torch::manual_seed(8);
  const Tensors parameters{torch::randn({30, 3}).to(device), torch::randn({20}), torch::randn({7}).to(device)};
  optim::AdamW optimizer(parameters, optim::AdamWOptions(0.1));
  if (limited) optimizer.set_max_grad_norm(0.5);
  for (int step = 0; step < 3; ++step) {
    for (const auto& parameter : parameters)
      parameter.mutable_grad() = torch::randn(parameter.sizes()).to(parameter.device());
    optimizer.step();
  }
  Tensors values;
  for (const auto& parameter : parameters) values.push_back(parameter.cpu());
  return values;
}

TEST(OptimOnDevice, TrainsThereAsOnTheCpu) {
  fake_accelerator().reset();
  for (const bool limited : {false, true}) {
    const auto expected = trained_on(at::kCPU, limited), trained = trained_on(kFakeDevice, limited);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::allclose(trained[i], expected[i], 1e-5, 1e-6)) << i << ", limited " << limited;
  }
  fake_accelerator().reset();
}

}  // namespace
}  // namespace ddp::testing
