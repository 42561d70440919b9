/// char_gpt.cpp: trains a GPT on the characters (bytes) of any text file, in bfloat16 and on as many ranks as the
/// launcher starts, and lets it write at the end.
///
///   char_gpt --text FILE [--OPTION N ...]    of steps, batch, accumulate, context, width, layers, heads, sample
///
/// A rank has `batch` windows in each of `accumulate` micro-batches of a step. Every 200 steps, at the end and when
/// asked to stop (Ctrl-C, SIGTERM) all ranks save char_gpt.pt, from which a run with the same arguments goes on: remove
/// it to begin anew. At the end rank 0 prints `sample` characters of the network's own.

#include <torch/torch.h>
#include <ddp/ddp.hpp>

#include <filesystem>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>

namespace nn = torch::nn;

struct Arguments {
  std::string text;
  std::int64_t steps = 2000, batch = 16, accumulate = 2, context = 64, width = 128, layers = 4, heads = 4, sample = 500;
  Arguments(int argc, char** argv) {
    const std::map<std::string, std::int64_t*> numbers{
        {"--steps", &steps}, {"--batch", &batch},   {"--accumulate", &accumulate}, {"--context", &context},
        {"--width", &width}, {"--layers", &layers}, {"--heads", &heads},           {"--sample", &sample}};
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (i + 1 == argc || (name != "--text" && !numbers.contains(name)))
        throw std::invalid_argument(name + " is unknown or without its value; char_gpt.cpp begins with the usage");
      name == "--text" ? void(text = argv[i + 1]) : void(*numbers.at(name) = std::stoll(argv[i + 1]));
    }
  }
};

/// A window of the text begins at each of its characters: [context], and as target the same, one character later.
struct Windows : torch::data::datasets::Dataset<Windows> {
  explicit Windows(const Arguments& arguments) : context(arguments.context) {
    const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(arguments.text));
    if (bytes <= context) throw std::invalid_argument(arguments.text + " is shorter than a window");
    text = torch::from_file(arguments.text, /*shared=*/false, bytes, torch::kByte);
  }
  torch::data::Example<> get(std::size_t index) override {
    const auto window = text.narrow(0, static_cast<std::int64_t>(index), context + 1).to(torch::kLong);
    return {window.slice(0, 0, -1), window.slice(0, 1)};
  }
  torch::optional<std::size_t> size() const override { return text.numel() - context; }

  std::int64_t context;
  torch::Tensor text;  // uint8; copies share it
};

/// Attention to earlier characters, then a feed-forward part; both beside a shortcut. [batch, time, width] to the same.
struct BlockImpl : nn::Module {
  explicit BlockImpl(const Arguments& sizes) : width(sizes.width), heads(sizes.heads) {}
  torch::Tensor forward(torch::Tensor x) {
    const auto parts = project(norm1(x)).unflatten(2, {3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + mix(seen.transpose(1, 2).flatten(2));
    return x + narrow(torch::gelu(widen(norm2(x))));
  }
  std::int64_t width, heads;
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear project = register_module("project", nn::Linear(width, 3 * width));
  nn::Linear mix = register_module("mix", nn::Linear(width, width));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear widen = register_module("widen", nn::Linear(width, 4 * width));
  nn::Linear narrow = register_module("narrow", nn::Linear(4 * width, width));
};
TORCH_MODULE(Block);

/// Characters [batch, time] to what may come after each: [batch, time, 256].
struct GptImpl : nn::Module {
  explicit GptImpl(const Arguments& arguments) : sizes(arguments) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) blocks->push_back(Block(sizes));
    blocks->push_back(nn::LayerNorm(nn::LayerNormOptions({sizes.width})));
    blocks->push_back(nn::Linear(sizes.width, 256));
    register_module("blocks", blocks);
  }
  torch::Tensor forward(torch::Tensor text) {
    return blocks->forward(characters(text) + places(torch::arange(text.size(1), text.options())));
  }
  const Arguments sizes;
  nn::Embedding characters = register_module("characters", nn::Embedding(256, sizes.width));
  nn::Embedding places = register_module("places", nn::Embedding(sizes.context, sizes.width));
  nn::Sequential blocks;
};
TORCH_MODULE(Gpt);

/// Prints characters, each drawn from what the network expects after the `context` before it.
void write(GptImpl& net, const Arguments& arguments, torch::Device device) {
  const torch::NoGradGuard no_grad;
  auto text = torch::full({1, 1}, '\n', torch::TensorOptions(torch::kLong).device(device));
  for (std::int64_t i = 0; i < arguments.sample; ++i) {
    const auto next = torch::softmax(net.forward(text).select(1, -1) / 0.8, -1).multinomial(1);
    text = torch::cat({text, next}, 1).slice(1, -arguments.context);
    std::cout << static_cast<char>(next.item<std::int64_t>());
  }
  std::cout << std::endl;
}

int main(int argc, char** argv) {
  return ddp::run([&] {
    ddp::stop_on_signals();
    const Arguments arguments(argc, argv);
    auto group = ddp::init_process_group();
    ddp::seed_all(42, *group);
    Gpt net(arguments);
    net->to(group->device());
    ddp::DistributedDataParallel model(net, group);
    auto data = Windows(arguments).map(torch::data::transforms::Stack<>());
    const auto batch_size = static_cast<std::size_t>(arguments.batch);
    ddp::DistributedSampler sampler(*data.size(), *group, {.seed = 42, .drop_last = true});
    auto loader = ddp::make_data_loader(std::move(data), sampler, torch::data::DataLoaderOptions(batch_size));
    const auto steps = arguments.steps, accumulate = arguments.accumulate;
    const ddp::TrainingPlan plan(
        {.local_batch = batch_size, .accumulate = accumulate, .batches = loader->batches(), .steps = steps}, *group);
    const auto rate = ddp::scaled_learning_rate(1e-3, 32, plan.global_batch(), ddp::ScalingRule::square_root);
    ddp::optim::AdamW optimizer(model->parameters(), ddp::optim::AdamWOptions(rate));
    optimizer.set_max_grad_norm(1.0);
    const auto rise = steps / 10 + 1;
    ddp::RateScheduler scheduler(optimizer, ddp::schedule::warm_up(rise, ddp::schedule::cosine(steps - rise, 0.1)));
    plan.report(scheduler);
    ddp::Checkpoint checkpoint("char_gpt.pt", model, optimizer, scheduler, sampler);
    checkpoint.add("plan", plan.checkpoint_value(scheduler));
    auto [epoch, step, metric] = checkpoint.load_or_start();
    for (bool ends = step >= steps; !ends; ++epoch) {
      sampler.set_epoch(epoch);
      for (auto& batch : ddp::prefetch(*loader, group->device())) {
        auto micro = ddp::accumulate(model, loader->step(), accumulate, loader->batches());
        const auto loss = [&] {
          const auto mixed = ddp::autocast(group->device(), {.dtype = torch::kBFloat16});
          return nn::functional::cross_entropy(model(batch.data).flatten(0, 1), batch.target.flatten());
        }();
        micro.backward(loss);
        if (!micro.steps()) continue;
        optimizer.step();
        optimizer.zero_grad();
        scheduler.step();
        if (ddp::log::every(20)) ddp::log::info("step {} of {} loss {:.4f}", step, steps, ddp::mean(loss, *group));
        ends = ++step == steps || ddp::stop_requested();  // on all ranks after the same step
        if (ends || step % 200 == 0) checkpoint.save({.epoch = epoch, .step = step});
        if (ends) break;
      }
    }
    if (step == steps && group->rank() == 0) write(*net, arguments, group->device());
  });
}
