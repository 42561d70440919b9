// A job that is stuck: after two good steps rank 1 stays in its own code, and the others wait for it in step 3.
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ddp/process_group.hpp"

int main() {
  ::alarm(50);  // no test lasts as long; a forgotten rank must not stay
  const auto group = ddp::init_process_group();
  auto tensor = at::ones({64});
  for (int step = 1; step <= 2; ++step) {
    group->mark_step(step);
    group->all_reduce(tensor);
  }
  group->mark_step(3);
  const auto line = "rank " + std::to_string(group->rank()) + " is " + std::to_string(::getpid()) + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) return 90;
  while (group->rank() == 1) ::pause();
  group->all_reduce(tensor, ddp::ReduceOp::sum, {.label = "loss"});
  return 0;
}
