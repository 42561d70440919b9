// One training step, and the time at its end: startup.py starts it. Rank 0 prints CLOCK_MONOTONIC in seconds.
#include <torch/torch.h>

#include <cstdio>
#include <ctime>

#include "ddp/ddp.hpp"

int main() {
  return ddp::run([] {
    const auto group = ddp::init_process_group();
    ddp::DistributedDataParallel model(torch::nn::Linear(64, 64), group);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    model(torch::ones({16, 64})).mean().backward();
    optimizer.step();
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    if (group->rank() == 0) {
      std::printf("first step ended at %.6f\n",
                  static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
    }
  });
}
