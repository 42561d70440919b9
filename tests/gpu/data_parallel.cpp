// Trains a network of the benchmarks with torch::nn::parallel::data_parallel, one process for all GPUs, and prints a
// line of JSON with what a step takes.
//
//   gpu_data_parallel --model mlp|resnet|gpt  --steps N  --warmup N  --batches N  --block N
//
// --batches: as for benchmark_train, for each GPU.
#include <ATen/DeviceAccelerator.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "measure.hpp"
#include "networks.hpp"
#include "options.hpp"

namespace {

using namespace ddp::benchmarks;

/// A network with the clone() that data_parallel wants on each GPU.
template <class N>
struct Copied : N {
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device) const override {
    const torch::NoGradGuard no_grad;
    auto copy = std::make_shared<Copied>();
    if (device) copy->to(*device);
    copy_values(this->parameters(), copy->parameters());
    copy_values(this->buffers(), copy->buffers());
    return copy;
  }

 private:
  static void copy_values(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }
};

std::shared_ptr<Network> network(const std::string& model) {
  torch::manual_seed(0);
  if (model == "resnet") return std::make_shared<Copied<ResNet18>>();
  if (model == "gpt") return std::make_shared<Copied<Gpt>>();
  return std::make_shared<Copied<Perceptron>>();
}

void train(const Options& options) {
  const auto model = options.text("model", "mlp");
  const auto gpus = static_cast<std::int64_t>(torch::cuda::device_count());
  const at::Device first(at::kCUDA, 0);
  auto task = make_task(model, 0, options.count("batches", 1) * gpus, first);
  task.network = network(model);
  task.network->to(first);
  torch::optim::SGD optimizer(task.network->parameters(), torch::optim::SGDOptions(0.01));
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      task.loss(torch::nn::parallel::data_parallel(task.network, task.input)).backward();
      optimizer.step();
    }
    for (std::int64_t gpu = 0; gpu < gpus; ++gpu) at::accelerator::synchronizeDevice(static_cast<at::DeviceIndex>(gpu));
  };
  run(options.count("warmup", 4));
  const int block = std::max(1, options.count("block", 10));
  std::vector<double> step_ms;
  for (int done = 0; done < options.count("steps", task.steps); done += block) {
    const double start = now_s();
    run(block);
    step_ms.push_back((now_s() - start) / block * 1e3);
  }
  std::printf(R"({"peer": "data_parallel", "model": "%s", "world": %lld, "batch": %lld, "ms_median": %.6g, )"
              R"("ms_p10": %.6g, "ms_p90": %.6g})"
              "\n",
              model.c_str(), static_cast<long long>(gpus), static_cast<long long>(task.input.size(0)),
              quantile(step_ms, 0.5), quantile(step_ms, 0.1), quantile(step_ms, 0.9));
}

}  // namespace

int main(int count, char** arguments) {
  try {
    train(Options(count, arguments, {"model", "steps", "warmup", "batches", "block"}));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "gpu_data_parallel: " << error.what() << '\n';
    return 1;
  }
}
