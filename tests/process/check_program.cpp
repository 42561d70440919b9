/// check_program.cpp: check_program WHAT: a training whose check passes (right), fails (sum), throws (throws), or that
/// has none (none). Prints "training" where it comes to train.

#include <torch/torch.h>
#include <ddp/ddp.hpp>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "support/points.hpp"

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto model = [] { return torch::nn::Linear(8, 4); };
  if (what != "none")
    ddp::smoke_test_on_request(
        model, [] { return ddp::testing::points(100); },
        [&](auto& net, auto& batch) {
          if (what == "throws") throw std::runtime_error("the loss is broken");
          const auto squares = (net(batch.data) - batch.target).pow(2);
          return what == "sum" ? squares.sum() / 100 : squares.mean();
        });
  return ddp::run([&] {
    const auto group = ddp::init_process_group();
    ddp::DistributedDataParallel wrapped(model(), group);
    std::puts("training");
  });
}
