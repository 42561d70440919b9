// A user's first program: trains one step and checks what every rank can know beforehand.
#include <torch/torch.h>
#include <ddp/ddp.hpp>
#include <stdexcept>

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

void train_one_step() {
  auto group = ddp::init_process_group();
  torch::manual_seed(group->rank());  // the replicas start apart; rank 0's parameters win
  torch::nn::Linear net(4, 2);
  ddp::DistributedDataParallel model(net, group);
  torch::optim::SGD optimizer(model->parameters(), 0.1);

  // Every weight's gradient is the sum of its input over the batch: 3 rows of rank + 1.
  model(torch::full({3, 4}, group->rank() + 1.0)).sum().backward();
  const double mean_gradient = 3 * (group->size() + 1) / 2.0;
  require(torch::allclose(net->weight.grad(), torch::full({2, 4}, mean_gradient)), "the gradient is not the mean");

  optimizer.step();
  for (const auto& weight : group->all_gather(net->weight.detach())) {
    require(torch::equal(weight, net->weight), "the ranks' weights differ");
  }
  ddp::log::info("consumer: {} ranks agree", group->size());
}

}  // namespace

int main() { return ddp::run(train_one_step); }
