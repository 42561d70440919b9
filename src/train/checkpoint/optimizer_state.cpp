#include <ATen/Functions.h>
#include <c10/util/Type.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <typeindex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "train/checkpoint/optimizer_layout.hpp"
#include "train/checkpoint/parts.hpp"

namespace ddp::checkpoint {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

std::string type_of(const Optimizer& optimizer) { return c10::demangle(typeid(optimizer).name()); }

// The module's names of the optimizer's parameters.
class ParameterNames {
 public:
  explicit ParameterNames(const torch::nn::Module* module) {
    if (!module) return;
    for (const auto& entry : module->named_parameters())
      names_.emplace(entry.value().unsafeGetTensorImpl(), entry.key());
  }
  std::string of(const at::Tensor& parameter) const {
    const auto found = names_.find(parameter.unsafeGetTensorImpl());
    return found == names_.end() ? "a parameter outside the module" : found->second;
  }
  std::vector<std::string> of_group(const std::vector<at::Tensor>& parameters) const {
    std::vector<std::string> names;
    for (const auto& parameter : parameters) names.push_back(of(parameter));
    return names;
  }

 private:
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
};

[[noreturn]] void fail_parameter(std::size_t group, std::size_t i, const std::string& there, const std::string& here) {
  throw std::runtime_error("it holds an optimizer whose parameter " + std::to_string(i) + " of group " +
                           std::to_string(group) + " is " + there + ", but here it is " + here);
}

// An optimizer in the layout of Python's optimizer of the same name.
class KnownOptimizer : public Part {
 public:
  KnownOptimizer(Optimizer& optimizer, const OptimizerLayout& layout, std::shared_ptr<torch::nn::Module> module)
      : optimizer_(optimizer), layout_(layout), module_(std::move(module)) {}

  Value state(Tensors tensors) const override {
    auto groups = empty_list();
    auto states = empty_dict();
    std::int64_t index = 0;
    const ParameterNames names(module_.get());
    for (auto& group : optimizer_.param_groups()) {
      auto entry = layout_.write_options(group.options());
      auto indices = empty_list(), group_names = empty_list();
      for (const auto& parameter : group.params()) {
        const auto state = optimizer_.state().find(parameter.unsafeGetTensorImpl());
        if (state != optimizer_.state().end())
          states.insert(index, layout_.write_state(*state->second, group.options(), tensors));
        indices.push_back(index++);
        group_names.push_back(names.of(parameter));
      }
      entry.insert("params", indices);
      if (module_) entry.insert("param_names", group_names);
      groups.push_back(entry);
    }
    auto whole = empty_dict();
    whole.insert("state", states);
    whole.insert("param_groups", groups);
    return whole;
  }

  Commit stage(const Place& place) override {
    const auto groups = place.at("param_groups").items();
    auto& here = optimizer_.param_groups();
    if (groups.size() != here.size())
      throw std::runtime_error("it holds an optimizer of " + std::to_string(groups.size()) +
                               " parameter groups, here are " + std::to_string(here.size()));
    auto staged = std::make_shared<Staged>();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      staged->options.push_back(here[i].options().clone());
      layout_.read_options(groups[i], *staged->options.back());
      stage_parameters(groups[i], i, place.at("state"), *staged);
    }
    return [this, staged] {
      for (std::size_t i = 0; i < staged->options.size(); ++i)
        layout_.assign_options(optimizer_.param_groups()[i].options(), *staged->options[i]);
      optimizer_.state().clear();
      for (auto& [parameter, state] : staged->states) optimizer_.state()[parameter] = std::move(state);
    };
  }

 private:
  struct Staged {
    std::vector<std::unique_ptr<OptimizerOptions>> options;
    std::vector<std::pair<c10::TensorImpl*, std::unique_ptr<OptimizerParamState>>> states;
  };

  void stage_parameters(const Place& group, std::size_t number, const Place& states, Staged& staged) const {
    const auto& here = optimizer_.param_groups()[number].params();
    const auto indices = group.at("params").items();
    const auto names = group.find("param_names");
    if (names && module_) require_same_names(*names, number);
    if (indices.size() != here.size())
      fail_parameter(number, std::min(indices.size(), here.size()), indices.size() < here.size() ? "missing" : "there",
                     indices.size() < here.size() ? "there" : "missing");
    const auto entries = states.dict();
    for (std::size_t i = 0; i < here.size(); ++i) {
      const auto found = entries.find(indices[i].integer());
      if (found == entries.end()) continue;
      const Place state(found->value(), states.path() + '.' + std::to_string(indices[i].integer()));
      if (auto read = layout_.read_state(state, *staged.options.back(), here[i]))
        staged.states.emplace_back(here[i].unsafeGetTensorImpl(), std::move(read));
    }
  }

  void require_same_names(const Place& saved, std::size_t number) const {
    std::vector<std::string> there;
    for (const auto& name : saved.items()) there.push_back(name.text());
    const auto here = ParameterNames(module_.get()).of_group(optimizer_.param_groups()[number].params());
    if (!are_wrapped(here) && are_wrapped(there))
      for (auto& name : there) name.erase(0, kWrapperPrefix.size());
    for (std::size_t i = 0; i < std::max(there.size(), here.size()); ++i) {
      const auto theirs = i < there.size() ? there[i] : "missing";
      const auto ours = i < here.size() ? here[i] : "missing";
      if (theirs != ours) fail_parameter(number, i, theirs, ours);
    }
  }

  Optimizer& optimizer_;
  const OptimizerLayout& layout_;
  std::shared_ptr<torch::nn::Module> module_;
};

// An optimizer of the program's own: what its save() writes, which nobody but its load() reads.
class OtherOptimizer : public Part {
 public:
  explicit OtherOptimizer(Optimizer& optimizer) : optimizer_(optimizer) {
    if (archive_of(bytes_of(optimizer_))->keys().empty())
      throw std::logic_error("checkpoint: " + type_of(optimizer_) +
                             " does not write its state; give it save() and load()");
  }

  Value state(Tensors) const override {
    const auto bytes = bytes_of(optimizer_);
    auto whole = empty_dict();
    whole.insert("archive", at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte));
    std::copy(bytes.begin(), bytes.end(), whole.at("archive").toTensor().mutable_data_ptr<std::uint8_t>());
    return whole;
  }

  // Loads into copies of the groups first, so that an error inside load() leaves the optimizer as it is.
  Commit stage(const Place& place) override {
    const auto tensor = place.at("archive").tensor().contiguous();
    const std::string bytes(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    auto groups = optimizer_.param_groups();
    std::remove_reference_t<decltype(optimizer_.state())> states;
    const auto swap = [&] {
      std::swap(optimizer_.param_groups(), groups);
      std::swap(optimizer_.state(), states);
    };
    swap();
    try {
      optimizer_.load(*archive_of(bytes));
    } catch (...) {
      swap();
      throw;
    }
    swap();
    return [this, bytes] {
      optimizer_.state().clear();  // load() leaves the state of a parameter that has none in the file
      optimizer_.load(*archive_of(bytes));
    };
  }

 private:
  static std::string bytes_of(const Optimizer& optimizer) {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    return std::move(stream).str();
  }
  static std::shared_ptr<torch::serialize::InputArchive> archive_of(const std::string& bytes) {
    auto archive = std::make_shared<torch::serialize::InputArchive>();
    archive->load_from(bytes.data(), bytes.size());
    return archive;
  }

  Optimizer& optimizer_;
};

// Another optimizer's state is refused by its type, which Python's files do not tell; their options do.
class TypedOptimizer : public Part {
 public:
  TypedOptimizer(std::string type, std::unique_ptr<Part> part) : type_(std::move(type)), part_(std::move(part)) {}

  Value state(Tensors tensors) const override {
    auto value = part_->state(tensors);
    value.toGenericDict().insert("type", type_);
    return value;
  }
  Commit stage(const Place& place) override {
    if (const auto saved = place.find("type"); saved && saved->text() != type_)
      throw std::runtime_error("it holds the state of " + saved->text() + " where the run here has " + type_);
    return part_->stage(place);
  }

 private:
  std::string type_;
  std::unique_ptr<Part> part_;
};

}  // namespace

std::unique_ptr<Part> make_part(Optimizer& optimizer, std::shared_ptr<torch::nn::Module> module) {
  if (const auto* layout = find_layout(typeid(optimizer)))
    return std::make_unique<TypedOptimizer>(c10::demangle(layout->libtorchs->name()),
                                            std::make_unique<KnownOptimizer>(optimizer, *layout, std::move(module)));
  return std::make_unique<TypedOptimizer>(type_of(optimizer), std::make_unique<OtherOptimizer>(optimizer));
}

}  // namespace ddp::checkpoint
