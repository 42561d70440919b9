/// grad_scaler_run.cpp: grad_scaler_run GRADIENT...: one step for each of these gradients of a weight, in float32.
/// Prints for each whether the optimizer stepped, the scale after update(), and the weight.

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "ddp/grad_scaler.hpp"

int main(int argc, char** argv) {
  auto weight = torch::zeros({1}).requires_grad_();
  torch::optim::SGD optimizer({weight}, 0.1);
  ddp::GradScaler scaler({.init_scale = 1000, .growth_factor = 3, .backoff_factor = 0.3, .growth_interval = 4});
  for (int i = 1; i < argc; ++i) {
    optimizer.zero_grad();
    scaler.scale((weight * std::strtof(argv[i], nullptr)).sum()).backward();
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    std::printf("%d %a %a\n", stepped ? 1 : 0, scaler.current_scale(), weight.item<double>());
  }
}
