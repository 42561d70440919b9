// The C++ side of checkpoint_parity.py:
//   checkpoint_run train FILE OPTIMIZER STEPS    goes on from FILE if it is there, up to STEPS, and saves there;
//                                                prints a line for each step: the loss in hexadecimal digits
//   checkpoint_run outline FILE                  prints what the file holds; exit code 3 and the error's text else
//   checkpoint_run module FILE                   torch::load() into the plain module; prints its outline
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "ddp/checkpoint.hpp"
#include "ddp/error.hpp"
#include "ddp/optim.hpp"
#include "ddp/state_dict.hpp"

namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

nn::Sequential make_net() {
  nn::Sequential net;
  net->push_back(nn::Linear(4, 8));
  net->push_back(nn::BatchNorm1d(8));
  net->push_back(nn::Functional(torch::tanh));
  net->push_back(nn::Linear(8, 3));
  return net;
}

using Groups = std::vector<optim::OptimizerParamGroup>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Groups&, const std::vector<at::Tensor>&)>;

// As in checkpoint_parity.py.
const std::map<std::string, MakeOptimizer> kOptimizers{
    {"sgd",
     [](const Groups& groups, const auto&) {
       auto options = optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3).nesterov(true);
       return std::make_unique<optim::SGD>(groups, options);
     }},
    {"adam",
     [](const Groups& groups, const auto&) {
       return std::make_unique<optim::Adam>(groups, optim::AdamOptions(0.01).amsgrad(true).weight_decay(1e-3));
     }},
    {"adamw",
     [](const Groups& groups, const auto&) {
       return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(0.01).betas({0.8, 0.99}));
     }},
    {"rmsprop",
     [](const Groups& groups, const auto&) {
       return std::make_unique<optim::RMSprop>(groups, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
     }},
    {"adagrad",
     [](const Groups& groups, const auto&) {
       return std::make_unique<optim::Adagrad>(groups, optim::AdagradOptions(0.05).lr_decay(0.01));
     }},
    {"fused_sgd",
     [](const Groups& groups, const auto&) {
       auto options = optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3).nesterov(true);
       return std::make_unique<ddp::optim::SGD>(groups, options);
     }},
    {"fused_adamw",
     [](const Groups& groups, const auto&) {
       return std::make_unique<ddp::optim::AdamW>(groups, optim::AdamWOptions(0.01).betas({0.8, 0.99}));
     }},
    {"lbfgs", [](const Groups&, const std::vector<at::Tensor>& parameters) {
       return std::make_unique<optim::LBFGS>(parameters, optim::LBFGSOptions(0.5).max_iter(4).history_size(3));
     }}};

void train(const std::string& path, const std::string& name, std::int64_t steps) {
  torch::manual_seed(1);
  auto net = make_net();
  const auto parameters = net->parameters();
  Groups groups{{{parameters[0], parameters[1]}}, {{parameters.begin() + 2, parameters.end()}}};
  const auto optimizer = kOptimizers.at(name)(groups, parameters);
  optim::StepLR scheduler(*optimizer, 2, 0.5);
  ddp::Checkpoint checkpoint(path, net, *optimizer, scheduler);
  for (auto step = checkpoint.load_or_start().step; step < steps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
    const auto input = torch::randn({16, 4}), target = torch::randn({16, 3});
    const auto loss = optimizer->step([&] {
      optimizer->zero_grad();
      auto error = (net->forward(input) - target).pow(2).mean();
      error.backward();
      return error;
    });
    scheduler.step();
    std::printf("%a\n", loss.item<double>());
  }
  checkpoint.save({.step = steps});
}

void outline(const c10::IValue& value, const std::string& name) {
  const auto inner = [&](const c10::IValue& child, const std::string& key) { outline(child, name + "/" + key); };
  if (value.isGenericDict()) {
    std::printf("%s dict %zu\n", name.c_str(), value.toGenericDict().size());
    for (const auto& entry : value.toGenericDict())
      inner(entry.value(), entry.key().isString() ? entry.key().toStringRef() : std::to_string(entry.key().toInt()));
  } else if (value.isList() || value.isTuple()) {
    const auto items = value.isList() ? value.toListRef().vec() : value.toTupleRef().elements().vec();
    std::printf("%s %s %zu\n", name.c_str(), value.isList() ? "list" : "tuple", items.size());
    for (std::size_t i = 0; i < items.size(); ++i) inner(items[i], std::to_string(i));
  } else if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    std::printf("%s tensor %s", name.c_str(), std::string(c10::toString(tensor.scalar_type())).c_str());
    for (const auto size : tensor.sizes()) std::printf(" %lld", static_cast<long long>(size));
    const auto real = tensor.is_complex() ? torch::view_as_real(tensor.resolve_conj()) : tensor;
    std::printf(" %a\n", real.to(torch::kDouble).sum().item<double>());
  } else if (value.isString()) {
    std::printf("%s str %s\n", name.c_str(), value.toStringRef().c_str());
  } else if (value.isDouble()) {
    std::printf("%s float %a\n", name.c_str(), value.toDouble());
  } else if (value.isBool()) {
    std::printf("%s bool %d\n", name.c_str(), value.toBool());
  } else if (value.isInt()) {
    std::printf("%s int %lld\n", name.c_str(), static_cast<long long>(value.toInt()));
  } else {
    std::printf("%s %s\n", name.c_str(), value.isNone() ? "None" : value.tagKind().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  torch::set_num_threads(1);
  try {
    if (what == "train" && argc == 5) train(argv[2], argv[3], std::stoll(argv[4]));
    if (what == "outline") outline(ddp::load_pt(argv[2]), "");
    if (what == "module") {
      auto net = make_net();
      torch::load(net, argv[2]);
      outline(ddp::state_dict(*net), "");
    }
  } catch (const ddp::CheckpointError& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
  return 0;
}
