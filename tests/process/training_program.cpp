// Trains 120 steps, a checkpoint every five, and goes on from the one that it finds: training_program FILE RESTARTS
// A line "rank R is process P" from each rank at once, and rank 0's "weights W" at the end, which comes with the
// RESTARTS-th restart and not before.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ddp/ddp.hpp"

namespace {

constexpr std::int64_t kSteps = 120, kEvery = 5;

int number(const char* variable) { return std::atoi(std::getenv(variable)); }

/// Of all bits.
std::uint64_t digest(const std::vector<torch::Tensor>& tensors) {
  std::uint64_t sum = 0;
  for (const auto& tensor : tensors) {
    const auto words = tensor.detach().view(torch::kInt).to(torch::kLong).contiguous();
    for (std::int64_t i = 0; i < words.numel(); ++i) {
      sum = sum * 1099511628211ULL + static_cast<std::uint64_t>(words.data_ptr<std::int64_t>()[i]);
    }
  }
  return sum;
}

}  // namespace

int main(int, char** argv) {
  ::alarm(280);  // no test lasts as long; a forgotten rank must not stay
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("rank %d is process %d\n", number("RANK"), ::getpid());
  return ddp::run([&] {
    const auto group = ddp::init_process_group();
    ddp::seed_all(3, *group);
    torch::nn::Sequential net;
    net->push_back(torch::nn::Linear(64, 64));
    net->push_back(torch::nn::Dropout(0.2));
    net->push_back(torch::nn::Linear(64, 8));
    ddp::DistributedDataParallel model(net, group);
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01));
    ddp::Checkpoint checkpoint(argv[1], model, {.background = true}, optimizer);
    for (auto step = checkpoint.load_or_start().step; step < kSteps;) {
      while (step == kSteps - 1 && number("TORCHELASTIC_RESTART_COUNT") < std::atoi(argv[2])) ::usleep(1000);
      optimizer.zero_grad();
      model(torch::randn({16, 64})).pow(2).mean().backward();
      optimizer.step();
      if (++step % kEvery == 0) checkpoint.save({.step = step});
    }
    checkpoint.wait();
    if (group->rank() == 0)
      std::printf("weights %016llx\n", static_cast<unsigned long long>(digest(model->parameters())));
  });
}
