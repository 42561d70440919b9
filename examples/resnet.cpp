/// resnet.cpp: trains a ResNet-18 with synchronised batch norm on Fashion-MNIST, on as many ranks as the launcher
/// starts.
///
///   resnet [--data FOLDER] [--epochs N] [--steps N] [--width N] [--batch N] [--resume]
///
/// FOLDER holds the unpacked idx files (quickstart.sh puts them into build/release/fashion-mnist). A rank takes --batch
/// images a step; batch norm sees those of all ranks. --width 64 is the ResNet-18 of the paper (He et al., 2015), with
/// a first layer for small images; 16 trains on CPUs in minutes an epoch. --steps ends the training early. After each
/// epoch, and when the ranks are asked to stop (Ctrl-C, SIGTERM, SIGUSR1), a checkpoint is written, resnet.pt, with
/// which --resume goes on.

#include <torch/torch.h>
#include <ddp/ddp.hpp>

#include <map>
#include <stdexcept>
#include <string>

namespace F = torch::nn::functional;
namespace nn = torch::nn;

/// Fashion-MNIST comes in MNIST's file format: images [1, 28, 28] in 0 to 1, here with mean 0 and deviation 1.
using torch::data::datasets::MNIST;
const torch::data::transforms::Normalize<> normalize(0.286, 0.353);
const torch::data::transforms::Stack<> stack;

void add_convolution(nn::Sequential& to, std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  to->push_back(nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false)));
  to->push_back(nn::BatchNorm2d(out));
}

/// Two convolutions and what goes around them.
struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride) {
    add_convolution(inner, in, out, 3, stride);
    inner->push_back(nn::ReLU());
    add_convolution(inner, out, out, 3, 1);
    if (stride != 1 || in != out) add_convolution(shortcut, in, out, 1, stride);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(inner->forward(x) + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }

  nn::Sequential inner = register_module("inner", nn::Sequential());
  nn::Sequential shortcut = register_module("shortcut", nn::Sequential());
};
TORCH_MODULE(Block);

struct ResNetImpl : nn::Module {
  explicit ResNetImpl(std::int64_t width) {
    add_convolution(layers, 1, width, 3, 1);
    layers->push_back(nn::ReLU());
    for (std::int64_t in = width, out = width; out <= 8 * width; in = out, out *= 2) {
      layers->push_back(Block(in, out, in == out ? 1 : 2));
      layers->push_back(Block(out, out, 1));
    }
    output = register_module("output", nn::Linear(8 * width, 10));
  }

  /// [batch, 1, 28, 28] to [batch, 10]
  torch::Tensor forward(const torch::Tensor& x) { return output(layers->forward(x).mean({2, 3})); }

  nn::Sequential layers = register_module("layers", nn::Sequential());
  nn::Linear output = nullptr;
};
TORCH_MODULE(ResNet);

struct Arguments {
  std::string data = "fashion-mnist";
  std::map<std::string, std::int64_t> numbers{
      {"--epochs", 3}, {"--steps", 1'000'000}, {"--width", 16}, {"--batch", 64}};
  bool resume = false;

  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string name = argv[i];
      if (name == "--resume")
        resume = true;
      else if (name == "--data" && i + 1 < argc)
        data = argv[++i];
      else if (numbers.count(name) > 0 && i + 1 < argc)
        numbers[name] = std::stoll(argv[++i]);
      else
        throw std::invalid_argument(
            "usage: resnet [--data FOLDER] [--epochs N] [--steps N] [--width N] [--batch N] [--resume]");
    }
  }
};

using Model = ddp::DistributedDataParallel<ResNetImpl>;

/// The share of the test images, each counted once, that the model classifies rightly.
double test_accuracy(Model& model, const std::string& path, ddp::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  auto data = MNIST(path, MNIST::Mode::kTest).map(normalize).map(stack);
  const ddp::DistributedSampler sampler(*data.size(), group, {.shuffle = false, .pad = false});
  auto loader = ddp::make_data_loader(std::move(data), sampler, torch::data::DataLoaderOptions(500));

  ddp::Accuracy accuracy;
  model->eval();
  for (auto& batch : ddp::prefetch(*loader, group.device())) accuracy.update(model(batch.data), batch.target);
  model->train();
  return accuracy.compute(group);
}

int main(int argc, char** argv) {
  return ddp::run([&] {
    ddp::stop_on_signals();
    Arguments arguments(argc, argv);
    auto group = ddp::init_process_group();
    ddp::seed_all(42, *group);

    ResNet net(arguments.numbers["--width"]);
    net->to(group->device());
    ddp::convert_sync_batchnorm(net, group);
    Model model(net, group);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(5e-4));
    torch::optim::StepLR scheduler(optimizer, 1, 0.5);

    auto data = MNIST(arguments.data).map(normalize).map(stack);
    ddp::DistributedSampler sampler(*data.size(), *group, {.seed = 42, .drop_last = true});
    auto loader =
        ddp::make_data_loader(std::move(data), sampler, static_cast<std::size_t>(arguments.numbers["--batch"]));

    ddp::Checkpoint checkpoint("resnet.pt", model, optimizer, scheduler, sampler);
    auto [epoch, step, accuracy] = arguments.resume ? checkpoint.load_or_start() : ddp::Progress();
    for (; epoch < arguments.numbers["--epochs"] && step < arguments.numbers["--steps"]; ++epoch) {
      sampler.set_epoch(epoch);
      for (auto& batch : ddp::prefetch(*loader, group->device())) {
        optimizer.zero_grad();
        auto loss = F::cross_entropy(model(batch.data), batch.target);
        loss.backward();
        optimizer.step();
        if (ddp::log::every(10))
          ddp::log::info("epoch {} step {} loss {:.4f}", epoch, step + 1, ddp::mean(loss, *group));
        const bool stops = ddp::stop_requested();  // on all ranks after the same step
        if (++step == arguments.numbers["--steps"]) break;
        if (stops) return checkpoint.save({.epoch = epoch, .step = step});
      }
      scheduler.step();
      accuracy = test_accuracy(model, arguments.data, *group);
      ddp::log::info("epoch {} accuracy on the 10,000 test images: {:.2f} %", epoch, 100 * *accuracy);
      checkpoint.save({.epoch = epoch + 1, .step = step, .metric = accuracy});
    }
  });
}
