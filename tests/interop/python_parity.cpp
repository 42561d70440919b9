// One rank of two that train as python_parity.py does: python_parity RANK FOLDER
// Writes FOLDER/cpp.CASE.RANK, float32: for each step the losses of its micro-batches, then all parameters, then all
// buffers.
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/run.hpp"

namespace {

namespace nn = torch::nn;

constexpr int kRanks = 2;
constexpr int kSteps = 50;
constexpr int kRowsOfARank = 6;

// [n, 3, 8, 8] to [n, 10]. A branching one has a layer that not every forward uses.
struct NetImpl : nn::Module {
  explicit NetImpl(bool branches) {
    if (branches) branch = register_module("branch", nn::Linear(32, 10));
  }
  torch::Tensor forward(torch::Tensor x, bool uses_branch) {
    x = torch::relu(bn1(conv1(x)));
    x = torch::relu(bn2(conv2(x)));
    x = torch::relu(bn3(fc1(x.flatten(1))));
    return uses_branch ? fc2(x) + branch(x) : fc2(x);
  }
  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)));
  nn::BatchNorm2d bn1 = register_module("bn1", nn::BatchNorm2d(8));
  nn::Conv2d conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2).padding(1).bias(false)));
  nn::BatchNorm2d bn2 = register_module("bn2", nn::BatchNorm2d(16));
  nn::Linear fc1 = register_module("fc1", nn::Linear(256, 32));
  nn::BatchNorm1d bn3 = register_module("bn3", nn::BatchNorm1d(32));
  nn::Linear fc2 = register_module("fc2", nn::Linear(32, 10));
  nn::Linear branch{nullptr};
};
TORCH_MODULE(Net);

using Parameters = std::vector<torch::Tensor>;

// As in python_parity.py, whose words the names are made of.
struct Case {
  std::string name;

  bool has(const char* word) const { return name.find(word) != std::string::npos; }
  bool accumulates() const { return has("no_sync"); }
  bool branches() const { return has("unused") || has("static"); }
  // By one rank, by the other or by none, in turn; a static graph never has the branch.
  bool uses_branch(int micro_batch, int rank) const { return has("unused") && (micro_batch + rank) % 3 == 0; }
  ddp::DistributedDataParallelOptions options() const {
    return {.bucket_cap_mb = 0.01,
            .first_bucket_cap_mb = 0.01,
            .broadcast_buffers = !has("local_buffers"),
            .find_unused_parameters = has("unused"),
            .static_graph = has("static")};
  }
};

std::unique_ptr<torch::optim::Optimizer> sgd(Parameters parameters) {
  auto options = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4);
  return std::make_unique<torch::optim::SGD>(std::move(parameters), options);
}

std::unique_ptr<torch::optim::Optimizer> adamw(Parameters parameters) {
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.002));
}

const std::vector<Case> kCases{
    {"sgd"},          {"sgd_no_sync"},        {"adamw"},      {"adamw_no_sync"},    {"sgd_unused"},
    {"adamw_unused"}, {"sgd_unused_no_sync"}, {"sgd_static"}, {"sgd_local_buffers"}};

void write(std::ofstream& file, const torch::Tensor& tensor) {
  const auto dense = tensor.detach().to(torch::kFloat).contiguous();
  file.write(static_cast<const char*>(dense.const_data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
}

// This rank's rows of a micro-batch that all ranks draw alike.
template <class Model>
torch::Tensor loss_of(Model& model, const Case& which, int micro_batch, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 + micro_batch));
  const auto input = torch::randn({kRanks * kRowsOfARank, 3, 8, 8});
  const auto target = torch::randint(10, {kRanks * kRowsOfARank}, torch::kLong);
  return nn::functional::cross_entropy(model(input.chunk(kRanks)[rank], which.uses_branch(micro_batch, rank)),
                                       target.chunk(kRanks)[rank]);
}

void train(const Case& which, const std::shared_ptr<ddp::ProcessGroup>& group, std::ofstream& file) {
  const int rank = group->rank();
  torch::manual_seed(static_cast<std::uint64_t>(7 + rank));  // rank 0's weights must reach rank 1
  Net net(which.branches());
  ddp::DistributedDataParallel model(net, group, which.options());
  const auto optimizer = which.has("sgd") ? sgd(model->parameters()) : adamw(model->parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    if (which.accumulates() && step % 3 == 1) {
      const auto guard = model->no_sync();
      const auto loss = loss_of(model, which, kSteps + step, rank);
      loss.backward();
      write(file, loss);
    }
    const auto loss = loss_of(model, which, step, rank);
    loss.backward();
    write(file, loss);
    optimizer->step();
    for (const auto& parameter : net->parameters()) write(file, parameter);
    for (const auto& buffer : net->buffers()) write(file, buffer);
  }
}

}  // namespace

int main(int, char** arguments) {
  return ddp::run([&] {
    const int rank = std::atoi(arguments[1]);
    const std::string folder = arguments[2];
    torch::set_num_threads(1);
    ddp::Environment environment;
    environment.rank = environment.local_rank = rank;
    environment.world_size = environment.local_world_size = kRanks;
    environment.source = "code";
    const auto group = ddp::init_process_group(
        {.timeout = std::chrono::seconds(25), .environment = environment, .store_file = folder + "/store.cpp"});
    for (const auto& one : kCases) {
      std::ofstream file(folder + "/cpp." + one.name + "." + std::to_string(rank), std::ios::binary);
      file.exceptions(std::ios::failbit | std::ios::badbit);
      train(one, group, file);
    }
  });
}
