/// fashion_mnist.cpp: trains a small convolutional network on Fashion-MNIST, on as many ranks as the launcher starts.
///
///   fashion_mnist [--data FOLDER] [--epochs N] [--target-accuracy SHARE] [--log-dir FOLDER] [--resume]
///
/// FOLDER holds the unpacked idx files (quickstart.sh puts them into build/release/fashion-mnist). Every 200 steps and
/// at the end of each epoch a checkpoint is written, run.pt; --resume goes on exactly where it was, inside an epoch
/// too. Ctrl-C, SIGTERM or SIGUSR1, to the launcher or to any rank: all ranks save after the same step and leave with
/// exit code 0. run.best.pt is the checkpoint with the best accuracy. The log folder gets the curves, for TensorBoard
/// and as a PNG; a target ends the run. Starts alone, under ddprun, torchrun --no-python, mpirun, srun or a shell loop;
/// with `ddprun --check` it compares four ranks with one process instead.

#include <torch/torch.h>
#include <ddp/ddp.hpp>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

/// Fashion-MNIST comes in MNIST's file format: images [1, 28, 28] in 0 to 1, here with mean 0 and deviation 1.
using torch::data::datasets::MNIST;
const torch::data::transforms::Normalize<> normalize(0.286, 0.353);

struct NetImpl : torch::nn::Module {
  /// [batch, 1, 28, 28] to [batch, 10]
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return output(torch::relu(hidden(x.flatten(1))));
  }

  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 16, 5));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(16, 32, 5));
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(32 * 4 * 4, 128));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(128, 10));
};
TORCH_MODULE(Net);

struct Arguments {
  std::string data = "fashion-mnist", log_dir = "runs/fashion_mnist";
  std::int64_t epochs = 3;
  double target = 2;  // never reached
  bool resume = false;

  Arguments(int argc, char** argv) {
    const std::map<std::string, std::function<void(const std::string&)>> options{
        {"--data", [&](const auto& value) { data = value; }},
        {"--log-dir", [&](const auto& value) { log_dir = value; }},
        {"--epochs", [&](const auto& value) { epochs = std::stoll(value); }},
        {"--target-accuracy", [&](const auto& value) { target = std::stod(value); }}};
    std::vector<std::string> words(argv + 1, argv + argc);
    resume = std::erase(words, "--resume") > 0;
    for (std::size_t i = 0; i < words.size(); i += 2) {
      const auto option = options.find(words[i]);
      if (option == options.end() || i + 1 == words.size()) throw std::invalid_argument("usage: see fashion_mnist.cpp");
      option->second(words[i + 1]);
    }
  }
};

using Model = ddp::DistributedDataParallel<NetImpl>;

/// The share of the test images, each counted once, that the model classifies rightly.
double test_accuracy(Model& model, const std::string& path, ddp::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  auto data = MNIST(path, MNIST::Mode::kTest).map(normalize).map(torch::data::transforms::Stack<>());
  const ddp::DistributedSampler sampler(*data.size(), group, {.shuffle = false, .pad = false});
  auto loader = ddp::make_data_loader(std::move(data), sampler, torch::data::DataLoaderOptions(500));
  ddp::Accuracy accuracy;
  model->eval();
  for (auto& batch : ddp::prefetch(*loader, group.device())) accuracy.update(model(batch.data), batch.target);
  model->train();
  return accuracy.compute(group);
}

auto training_images(const std::string& path) {
  return MNIST(path).map(normalize).map(torch::data::transforms::Stack<>());
}

torch::Tensor loss_of(auto& model, const torch::data::Example<>& batch) {
  return torch::nn::functional::cross_entropy(model(batch.data), batch.target);
}

/// Returns the loss.
torch::Tensor train(auto& model, torch::optim::Optimizer& optimizer, const torch::data::Example<>& batch) {
  optimizer.zero_grad();
  auto loss = loss_of(model, batch);
  loss.backward();
  optimizer.step();
  return loss;
}

int main(int argc, char** argv) {
  return ddp::run([&] {
    ddp::stop_on_signals();
    const Arguments arguments(argc, argv);
    ddp::smoke_test_on_request([] { return Net(); }, [&] { return training_images(arguments.data); },  // ddprun --check
                               [](auto& model, auto& batch) { return loss_of(model, batch); });
    auto group = ddp::init_process_group();
    ddp::seed_all(42, *group);

    Net net;
    net->to(group->device());
    Model model(net, group);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    torch::optim::StepLR scheduler(optimizer, 1, 0.5);  // halves the rate from the third epoch on

    auto data = training_images(arguments.data);
    Net own;  // of rank 0, which trains on a batch without the others first, to tell how well they scale
    own->to(group->device());
    torch::optim::SGD own_optimizer(own->parameters(), 0.05);
    const double alone = ddp::throughput_alone(*group, [&] {
      const auto batch = data.get_batch(std::vector<std::size_t>(64));
      train(own, own_optimizer, {batch.data.to(group->device()), batch.target.to(group->device())});
      return batch.data.size(0);
    });
    ddp::DistributedSampler sampler(*data.size(), *group, {.seed = 42, .drop_last = true});
    auto loader = ddp::make_data_loader(std::move(data), sampler, torch::data::DataLoaderOptions(64));

    const ddp::CheckpointOptions options{.background = true, .keep_best = ddp::CheckpointOptions::Best::highest};
    ddp::Checkpoint checkpoint("run.pt", model, options, optimizer, scheduler, sampler);
    auto [epoch, step, accuracy] = arguments.resume ? checkpoint.load_or_start() : ddp::Progress();
    ddp::SummaryWriter writer(arguments.log_dir, *group, {.csv = true, .purge_step = step + 1});
    ddp::Plot plot("Fashion-MNIST", *group);
    ddp::Throughput throughput;
    for (; epoch < arguments.epochs && !(accuracy >= arguments.target); ++epoch) {
      sampler.set_epoch(epoch);
      ddp::ProgressBar bar(loader->batches() - sampler.position() / 64, *group);
      for (auto& batch : ddp::prefetch(*loader, group->device())) {
        const auto loss = train(model, optimizer, batch);
        throughput.add(batch.data.size(0));
        bar.advance();
        ++step;
        if (ddp::log::every(50)) {
          const double mean = ddp::mean(loss, *group);
          ddp::log::info("epoch {} step {} of {} loss {:.4f}", epoch, loader->step(), loader->batches(), mean);
          writer.add_scalar("loss", mean, step);
          plot.add("loss", "training", static_cast<double>(step), mean);
        }
        const bool stops = ddp::stop_requested();  // on all ranks after the same step
        if (step % 200 == 0 || stops) checkpoint.save({.epoch = epoch, .step = step});
        if (stops) return checkpoint.wait();
      }
      bar.finish();
      scheduler.step();
      const auto pause = throughput.pause();
      accuracy = test_accuracy(model, arguments.data, *group);
      ddp::log::info("epoch {} accuracy on the 10,000 test images: {:.2f} %", epoch, 100 * *accuracy);
      writer.add_scalar("accuracy", *accuracy, step);
      plot.add("accuracy", "test images", static_cast<double>(step), *accuracy);
      plot.save(arguments.log_dir + "/curves.png");
      checkpoint.save({.epoch = epoch + 1, .step = step, .metric = accuracy});
    }
    if (accuracy >= arguments.target) ddp::log::info("target after {:.1f} s of training", throughput.elapsed().count());
    const double all = throughput.compute(*group);
    ddp::log::info("{:.0f} samples/s, scaling efficiency {:.2f}", all, ddp::scaling_efficiency(all, alone, *group));
    checkpoint.wait();
  });
}
