// Trains until the ranks stop, then saves a checkpoint, or until it has made a million steps:
//   stop_program FILE
// Each rank's lines: "rank 1 is process P", "rank 1 did step S", and at the end "rank 1 stopped after step S".
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

#include "ddp/checkpoint.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/process_group.hpp"
#include "ddp/run.hpp"
#include "ddp/stop.hpp"

int main(int /*argc*/, char** argv) {
  ::alarm(50);  // no test lasts as long; a forgotten rank must not stay
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  return ddp::run([&] {
    ddp::stop_on_signals();
    const auto group = ddp::init_process_group();
    ddp::DistributedDataParallel model(torch::nn::Linear(8, 4), group);
    torch::optim::SGD optimizer(model->parameters(), 0.01);
    ddp::Checkpoint checkpoint(argv[1], model, optimizer);
    std::printf("rank %d is process %d\n", group->rank(), ::getpid());
    for (int step = checkpoint.load_or_start().step + 1; step <= 1'000'000; ++step) {
      optimizer.zero_grad();
      model(torch::ones({2, 8})).sum().backward();
      optimizer.step();
      if (step % 100 == 0) std::printf("rank %d did step %d\n", group->rank(), step);
      if (!ddp::stop_requested()) continue;
      checkpoint.save({.step = step});
      std::printf("rank %d stopped after step %d\n", group->rank(), step);
      return;
    }
    throw std::runtime_error("nobody has asked for a stop");
  });
}
