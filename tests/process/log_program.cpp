// Ranks that log to the file of the first argument, if there is one: what one alone says, what each says, and a mean
// over all of them.
#include <torch/torch.h>
#include <unistd.h>

#include <string>

#include "ddp/ddp.hpp"

namespace {

constexpr int kSteps = 101;

void train(const std::string& path) {
  const auto group = ddp::init_process_group();
  if (!path.empty()) ddp::log::to_file(path);
  for (int step = 0; step < kSteps; ++step) {
    if (group->rank() == 0) ddp::log::info("alone {}", step);
    ddp::log::all.info("step {} {}.", step, std::string(static_cast<std::size_t>(step) * 30, 'x'));
    const auto loss = torch::full({}, group->rank());
    if (ddp::log::every(50)) ddp::log::info("mean {}", ddp::mean(loss, *group));
  }
}

}  // namespace

int main(int count, char** words) {
  ::alarm(50);  // no test lasts as long; a forgotten rank must not stay
  return ddp::run([&] { train(count > 1 ? words[1] : ""); });
}
