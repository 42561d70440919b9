// Ranks that log to the file of the first argument, if there is one: what one alone says, what each says, and a mean
// over all of them. With a second argument rank 1 throws it at the end.
#include <torch/torch.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "ddp/ddp.hpp"

namespace {

constexpr int kSteps = 101;

void train(const std::string& path, const std::string& error) {
  const auto group = ddp::init_process_group();
  if (!path.empty()) ddp::log::to_file(path);
  for (int step = 0; step < kSteps; ++step) {
    if (group->rank() == 0) ddp::log::info("alone {}", step);
    ddp::log::all.info("step {} {}.", step, std::string(static_cast<std::size_t>(step) * 30, 'x'));
    const auto loss = torch::full({}, group->rank());
    if (ddp::log::every(50)) ddp::log::info("mean {}", ddp::mean(loss, *group));
  }
  if (error.empty()) return;
  if (group->rank() == 1) throw std::runtime_error(error);
  group->barrier();
}

}  // namespace

int main(int count, char** words) {
  ::alarm(50);  // no test lasts as long; a forgotten rank must not stay
  return ddp::run([&] { train(count > 1 ? words[1] : "", count > 2 ? words[2] : ""); });
}
