/// optim_run.cpp: the C++ side of optim_parity.py.
///     optim_run FILE...     goes on from the parameters and optimizer in each FILE, by the gradients in it and an
///                           optimizer of ddp::optim, and saves there

#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ddp/optim.hpp"
#include "ddp/state_dict.hpp"

namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// The options come out of the file.
const std::map<std::string, std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>> kOptimizers{
    {"SGD", [](const Groups& groups) { return std::make_unique<ddp::optim::SGD>(groups, ddp::optim::SGDOptions(1)); }},
    {"Adam", [](const Groups& groups) { return std::make_unique<ddp::optim::Adam>(groups); }},
    {"AdamW", [](const Groups& groups) { return std::make_unique<ddp::optim::AdamW>(groups); }}};

std::vector<at::Tensor> tensors_in(const c10::IValue& list) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : list.toListRef()) tensors.push_back(item.toTensor().clone());
  return tensors;
}

void go_on(const std::string& path) {
  auto file = ddp::load_pt(path).toGenericDict();
  const auto parameters = tensors_in(file.at("parameters"));
  const auto middle = parameters.begin() + file.at("in_first_group").toInt();
  const auto optimizer = kOptimizers.at(file.at("kind").toStringRef())(
      {std::vector(parameters.begin(), middle), std::vector(middle, parameters.end())});
  ddp::load_state_dict(*optimizer, file.at("optimizer"));
  for (const auto& step : file.at("gradients").toListRef()) {
    const auto gradients = tensors_in(step);
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
    optimizer->step();
  }
  file.insert_or_assign("parameters", c10::List<at::Tensor>(parameters));
  file.insert_or_assign("optimizer", ddp::state_dict(*optimizer));
  ddp::save_pt(path, file);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  for (int i = 1; i < argc; ++i) go_on(argv[i]);
}
