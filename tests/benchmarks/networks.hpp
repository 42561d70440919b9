#pragma once
/// networks.hpp: the networks that are trained by every library compared. Parameters, their order, initial values and
/// data are the same in all of them, so that losses agree and only what the libraries do differs.

#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddp::benchmarks {

namespace nn = torch::nn;

/// One input to one output; its loss is the cross-entropy of the last dimension.
struct Network : nn::Module {
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};

/// [n, 784] to [n, 10] through four hidden layers of 1024: few, large gradients.
struct Perceptron : Network {
  Perceptron() {
    for (int i = 0; i < 5; ++i)
      layers.push_back(
          register_module("layer" + std::to_string(i), nn::Linear(i == 0 ? 784 : 1024, i == 4 ? 10 : 1024)));
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = layers[0](x);
    for (std::size_t i = 1; i < layers.size(); ++i) x = layers[i](torch::relu(x));
    return x;
  }
  std::vector<nn::Linear> layers;
};

inline nn::Conv2d convolution(int in, int out, int kernel, int stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// Two 3x3 convolutions beside a shortcut, which is a convolution too where the shape changes.
struct ResidualBlockImpl : nn::Module {
  ResidualBlockImpl(int in, int out, int stride)
      : conv1(register_module("conv1", convolution(in, out, 3, stride))),
        norm1(register_module("norm1", nn::BatchNorm2d(out))),
        conv2(register_module("conv2", convolution(out, out, 3, 1))),
        norm2(register_module("norm2", nn::BatchNorm2d(out))) {
    if (in == out && stride == 1) return;
    shortcut = register_module("shortcut", convolution(in, out, 1, stride));
    shortcut_norm = register_module("shortcut_norm", nn::BatchNorm2d(out));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut.is_empty() ? x : shortcut_norm(shortcut(x))));
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Conv2d shortcut{nullptr};
  nn::BatchNorm2d shortcut_norm{nullptr};
};
TORCH_MODULE(ResidualBlock);

/// ResNet-18, [n, 3, 32, 32] to [n, 10]: many gradients of all sizes, and 60 buffers.
struct ResNet18 : Network {
  ResNet18()
      : stem(register_module("stem", convolution(3, 64, 7, 2))), norm(register_module("norm", nn::BatchNorm2d(64))) {
    int in = 64;
    for (const int out : {64, 64, 128, 128, 256, 256, 512, 512}) {
      blocks.push_back(
          register_module("block" + std::to_string(blocks.size()), ResidualBlock(in, out, in == out ? 1 : 2)));
      in = out;
    }
    head = register_module("head", nn::Linear(512, 10));
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::max_pool2d(torch::relu(norm(stem(x))), 3, 2, 1);
    for (auto& block : blocks) x = block(x);
    return head(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  nn::Conv2d stem;
  nn::BatchNorm2d norm;
  std::vector<ResidualBlock> blocks;
  nn::Linear head{nullptr};
};

constexpr std::int64_t kWidth = 384, kHeads = 6, kSequence = 128, kVocabulary = 8192;

inline nn::LayerNorm layer_norm() { return nn::LayerNorm(nn::LayerNormOptions({kWidth})); }

/// Attention to earlier tokens, then a feed-forward part; both beside a shortcut.
struct TransformerBlockImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1);
    const auto joined = project(norm1(x)).view({batch, length, 3, kHeads, kWidth / kHeads});
    const auto parts = joined.permute({2, 0, 3, 1, 4}).unbind(0);
    const auto attended = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + mix(attended.transpose(1, 2).reshape({batch, length, kWidth}));
    return x + narrow(torch::gelu(widen(norm2(x))));
  }
  nn::LayerNorm norm1 = register_module("norm1", layer_norm());
  nn::Linear project = register_module("project", nn::Linear(kWidth, 3 * kWidth));
  nn::Linear mix = register_module("mix", nn::Linear(kWidth, kWidth));
  nn::LayerNorm norm2 = register_module("norm2", layer_norm());
  nn::Linear widen = register_module("widen", nn::Linear(kWidth, 4 * kWidth));
  nn::Linear narrow = register_module("narrow", nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(TransformerBlock);

/// A small GPT, tokens [n, 128] to [n, 128, 8192]: one large gradient, used twice (the head is the embedding).
struct Gpt : Network {
  Gpt() {
    for (int i = 0; i < 6; ++i) blocks.push_back(register_module("block" + std::to_string(i), TransformerBlock()));
    norm = register_module("norm", layer_norm());
    const torch::NoGradGuard no_grad;
    tokens->weight.normal_(0, 0.02);
    positions->weight.normal_(0, 0.02);
  }
  torch::Tensor forward(torch::Tensor x) override {
    if (places.device() != x.device()) places = places.to(x.device());
    x = tokens(x) + positions(places);
    for (auto& block : blocks) x = block(x);
    return nn::functional::linear(norm(x), tokens->weight);
  }
  nn::Embedding tokens = register_module("tokens", nn::Embedding(kVocabulary, kWidth));
  nn::Embedding positions = register_module("positions", nn::Embedding(kSequence, kWidth));
  std::vector<TransformerBlock> blocks;
  nn::LayerNorm norm{nullptr};
  torch::Tensor places = torch::arange(kSequence);
};

/// A network and one rank's batch for it, which serves every step.
struct Task {
  std::shared_ptr<Network> network;
  torch::Tensor input, target;
  int steps;  ///< that make a run of a few seconds

  torch::Tensor loss(const torch::Tensor& output) const {
    return nn::functional::cross_entropy(output.flatten(0, -2), target.flatten());
  }
};

/// `batches`: as many times the batch that serves the CPU. All on `device`, made on the CPU.
inline Task make_task(const std::string& model, int rank, std::int64_t batches = 1, at::Device device = at::kCPU) {
  Task task;
  torch::manual_seed(0);
  if (model == "mlp")
    task = {std::make_shared<Perceptron>(), {}, {}, 60};
  else if (model == "resnet")
    task = {std::make_shared<ResNet18>(), {}, {}, 20};
  else if (model == "gpt")
    task = {std::make_shared<Gpt>(), {}, {}, 15};
  else
    throw std::invalid_argument("--model " + model + " is none of mlp, resnet, gpt");
  torch::manual_seed(static_cast<std::uint64_t>(1000 + rank));
  const auto labels = [](std::int64_t classes, std::vector<std::int64_t> sizes) {
    return torch::randint(classes, sizes, torch::kLong);
  };
  if (model == "gpt") {
    task.input = labels(kVocabulary, {2 * batches, kSequence});
    task.target = labels(kVocabulary, {2 * batches, kSequence});
  } else {
    task.input = model == "mlp" ? torch::randn({32 * batches, 784}) : torch::randn({16 * batches, 3, 32, 32});
    task.target = labels(10, {task.input.size(0)});
  }
  task.network->to(device);
  task.input = task.input.to(device);
  task.target = task.target.to(device);
  return task;
}

}  // namespace ddp::benchmarks
