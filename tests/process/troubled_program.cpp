// A small training in which rank 1 has a trouble in step 3, the one that TROUBLE names; the recipes of
// docs/troubleshooting.md are tried on it.
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "ddp/ddp.hpp"
#include "support/training.hpp"

namespace {

using ddp::testing::Perceptron;

std::string trouble() {
  const char* name = std::getenv("TROUBLE");
  return name == nullptr ? "" : name;
}

bool has(const std::string& name, const ddp::ProcessGroup& group) { return group.rank() == 1 && trouble() == name; }

[[noreturn]] void stay() {
  for (;;) ::pause();
}

/// A sample that is behind a pipe into which nobody writes.
void read_nothing() {
  int ends[2];
  char byte = 0;
  if (::pipe(ends) == 0 && ::read(ends[0], &byte, 1) >= 0) stay();
}

struct Samples : torch::data::Dataset<Samples> {
  explicit Samples(std::shared_ptr<ddp::ProcessGroup> of) : group(std::move(of)) {}
  torch::data::Example<> get(std::size_t index) override {
    if (has("data", *group) && static_cast<int>(index) / group->size() == 2) read_nothing();
    return {torch::ones({8}, torch::kDouble), torch::zeros({4}, torch::kDouble)};
  }
  torch::optional<std::size_t> size() const override {
    const int batches = has("batches", *group) || has("end", *group) ? 2 : 4;
    return static_cast<std::size_t>(batches * group->size());
  }

  std::shared_ptr<ddp::ProcessGroup> group;
};

/// What rank 1 does in step 3 before its forward.
void be_in_trouble(ddp::ProcessGroup& group) {
  if (has("memory", group)) ::raise(SIGKILL);  // as the kernel does
  if (has("validation", group)) {
    const ddp::Phase phase("validation");
    stay();
  }
  if (has("slow", group)) {
    const ddp::Phase phase("augmenting");
    for (volatile bool goes_on = true; goes_on;) {
    }
  }
}

void train() {
  const auto group = ddp::init_process_group();
  ddp::DistributedDataParallel model(Perceptron(), group);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Samples samples(group);
  // Without the group, whose sampler would find at once that the ranks' data differ.
  const ddp::DistributedSampler sampler(*samples.size(),
                                        {.num_replicas = group->size(), .rank = group->rank(), .shuffle = false});
  auto loader = ddp::make_data_loader(samples.map(torch::data::transforms::Stack<>()), sampler, 1);
  torch::Tensor loss;
  for (auto& batch : *loader) {
    const auto step = static_cast<std::int64_t>(loader->step());
    ddp::step(step);
    if (step == 3) be_in_trouble(*group);
    optimizer.zero_grad();
    loss = ddp::testing::squared_error(model(batch.data), batch.target);
    loss.backward();
    optimizer.step();
    if (trouble() == "rank 0" && group->rank() == 0 && step == 3) group->barrier({.label = "checkpoint"});
  }
  if (has("end", *group)) stay();
  ddp::log::info("loss {:.4f}", ddp::mean(loss, *group));
}

}  // namespace

int main() {
  ::alarm(50);  // no test lasts as long; a forgotten rank must not stay
  return ddp::run(train);
}
