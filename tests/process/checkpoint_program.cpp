// Saves a checkpoint after each step, as fast as it can, and goes on from the one that it finds:
//   checkpoint_program FILE [background]
// After step s every weight is s. A line "rank 0 is process P", and "saved S" whenever save() has returned.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "ddp/checkpoint.hpp"
#include "ddp/process_group.hpp"
#include "ddp/run.hpp"

int main(int argc, char** argv) {
  ::alarm(50);  // no test lasts as long; a forgotten rank must not stay
  return ddp::run([&] {
    const auto group = ddp::init_process_group();
    const torch::nn::Linear net(1024, 512);  // 2 MiB: a save takes some milliseconds
    ddp::Checkpoint checkpoint(argv[1], net.ptr(), group, {.background = argc > 2, .keep_last = 2});
    auto step = checkpoint.load_or_start().step;
    if (group->rank() == 0) std::printf("rank 0 is process %d\n", ::getpid());
    for (;;) {
      ++step;
      {
        const torch::NoGradGuard no_grad;
        net->weight.fill_(static_cast<double>(step));
        net->bias.fill_(static_cast<double>(step));
      }
      checkpoint.save({.step = step});
      if (group->rank() == 0) std::printf("saved %lld\n", static_cast<long long>(step));
      std::fflush(stdout);
    }
  });
}
