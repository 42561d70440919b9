#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "train/checkpoint/parts.hpp"

namespace ddp::checkpoint {
namespace {

constexpr std::size_t kDifferencesShown = 5;

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << ' ' << tensor.sizes();
  return text.str();
}

ModuleTree tree_of(const torch::nn::Module& module, Tensors tensors) {
  ModuleTree tree;
  const auto add = [&](const auto& entry) {
    if (entry.value().defined() && is_expanded(entry.value()))
      throw std::runtime_error(entry.key() +
                               " was made by expand(), so that nothing can be loaded into it; clone() it");
    if (entry.value().defined()) tree.tensors.emplace_back(entry.key(), to_write(entry.value(), tensors));
  };
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) add(entry);
  for (const auto& entry : module.named_buffers(/*recurse=*/false)) add(entry);
  for (const auto& child : module.named_children())
    if (child.value()->is_serializable()) tree.children.emplace_back(child.key(), tree_of(*child.value(), tensors));
  return tree;
}

void flatten(const ModuleTree& tree, const std::string& prefix, Dict& values) {
  for (const auto& [name, tensor] : tree.tensors) values.insert(prefix + name, tensor);
  for (const auto& [name, child] : tree.children) flatten(child, prefix + name + '.', values);
}

void collect_live(const torch::nn::Module& module, const std::string& prefix,
                  std::vector<std::pair<std::string, at::Tensor>>& live) {
  const auto add = [&](const auto& entry) {
    if (entry.value().defined()) live.emplace_back(prefix + entry.key(), entry.value());
  };
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) add(entry);
  for (const auto& entry : module.named_buffers(/*recurse=*/false)) add(entry);
  for (const auto& child : module.named_children())
    if (child.value()->is_serializable()) collect_live(*child.value(), prefix + child.key() + '.', live);
}

template <class Entries>
std::vector<std::string> names_of(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry.first);
  return names;
}

// The file's names and values. The prefix that Python's wrapper gives to all names goes, unless the module has it too.
std::map<std::string, Value> entries_of(const Place& place, bool keeps_prefix) {
  std::map<std::string, Value> entries, bare;
  for (const auto& entry : place.dict()) {
    if (!entry.key().isString()) place.fail("has " + kind_of(entry.key()) + " where a name was expected");
    entries.emplace(entry.key().toStringRef(), entry.value());
  }
  if (keeps_prefix || !are_wrapped(names_of(entries))) return entries;
  for (const auto& [name, value] : entries) bare.emplace(name.substr(kWrapperPrefix.size()), value);
  return bare;
}

[[noreturn]] void fail(const std::vector<std::string>& differences) {
  std::string text = "it holds another model: ";
  for (std::size_t i = 0; i < differences.size() && i < kDifferencesShown; ++i)
    text += (i == 0 ? "" : ", ") + differences[i];
  if (differences.size() > kDifferencesShown)
    text += ", and " + std::to_string(differences.size() - kDifferencesShown) + " more";
  throw std::runtime_error(text);
}

// Compares a module with what a file has, name by name.
class Comparison {
 public:
  explicit Comparison(std::map<std::string, Value> saved) : saved_(std::move(saved)) {}

  void compare(const std::string& name, const at::Tensor& live) {
    const auto found = saved_.find(name);
    if (found == saved_.end()) return differences_.push_back(name + " is not in the file");
    const auto value = found->second;
    saved_.erase(found);
    const auto here = describe(live), there = value.isTensor() ? describe(value.toTensor()) : kind_of(value);
    if (is_expanded(live)) return differences_.push_back(name + " was made by expand(), so that nothing can be loaded");
    if (here != there) return differences_.push_back(name + " is " + there + " in the file and " + here + " here");
    pairs_.emplace_back(live, value.toTensor());
  }

  Commit result() {
    for (const auto& entry : saved_) differences_.push_back(entry.first + " is only in the file");
    if (!differences_.empty()) fail(differences_);
    return [pairs = std::move(pairs_)] {
      const at::NoGradGuard no_grad;
      for (const auto& [live, saved] : pairs) at::Tensor(live).copy_(saved);
    };
  }

 private:
  std::map<std::string, Value> saved_;  ///< what has not been asked for yet
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
  std::vector<std::string> differences_;
};

}  // namespace

bool are_wrapped(const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.starts_with(kWrapperPrefix); });
}

ModuleState state_of(const torch::nn::Module& module, Tensors tensors) {
  ModuleState state{empty_dict(), tree_of(module, tensors)};
  flatten(state.tree, "", state.values);
  return state;
}

Commit stage_module(const torch::nn::Module& module, const Place& place) {
  std::vector<std::pair<std::string, at::Tensor>> live;
  collect_live(module, "", live);
  Comparison comparison(entries_of(place, are_wrapped(names_of(live))));
  for (const auto& [name, tensor] : live) comparison.compare(name, tensor);
  return comparison.result();
}

}  // namespace ddp::checkpoint
