#include <c10/util/Type.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddp/distributed_sampler.hpp"
#include "train/checkpoint_state.hpp"

namespace ddp::checkpoint {
namespace {

std::string read_text(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  return archive.try_read(key, value) && value.isString() ? value.toStringRef() : "";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Every torch::optim optimizer writes and reads all its state itself, by the position of a parameter in its group.
// Beside it stand its type and which parameter that is, which it does not compare.
class OptimizerPart : public Part {
 public:
  OptimizerPart(torch::optim::Optimizer& optimizer, std::shared_ptr<torch::nn::Module> module)
      : optimizer_(optimizer), module_(std::move(module)) {
    OutputArchive archive;
    optimizer_.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    const auto bytes = stream.str();
    InputArchive written;
    written.load_from(bytes.data(), bytes.size());
    if (written.keys().empty())
      throw std::logic_error("checkpoint: " + type() + " does not write its state; give it save() and load()");
  }

  void write(OutputArchive& archive) const override {
    archive.write("type", c10::IValue(type()));
    archive.write("parameters", c10::IValue(parameters()));
    OutputArchive state(archive.compilation_unit());
    optimizer_.save(state);
    archive.write("state", state);
  }

  Commit stage(std::shared_ptr<InputArchive> archive) override {
    require_same_type_and_parameters(*archive);
    auto state = std::make_shared<InputArchive>();
    archive->read("state", *state);
    rehearse(*state);
    return [this, state] {
      optimizer_.state().clear();  // load() leaves the state of a parameter that has none in the file
      optimizer_.load(*state);
    };
  }

 private:
  std::string type() const {
    const auto& optimizer = optimizer_;
    return c10::demangle(typeid(optimizer).name());
  }

  // A line for each parameter: "group 0: conv1.weight [16, 1, 5, 5]".
  std::string parameters() const {
    std::unordered_map<const c10::TensorImpl*, std::string> names;
    for (const auto& entry : module_->named_parameters())
      names.emplace(entry.value().unsafeGetTensorImpl(), entry.key());
    std::ostringstream text;
    for (std::size_t group = 0; group < optimizer_.param_groups().size(); ++group) {
      for (const auto& parameter : optimizer_.param_groups()[group].params()) {
        const auto name = names.find(parameter.unsafeGetTensorImpl());
        text << "group " << group << ": " << (name == names.end() ? "a parameter outside the module" : name->second)
             << ' ' << parameter.sizes() << '\n';
      }
    }
    return text.str();
  }

  void require_same_type_and_parameters(InputArchive& archive) const {
    if (const auto saved = read_text(archive, "type"); saved != type())
      throw std::runtime_error("it holds " + (saved.empty() ? "no optimizer" : "the state of " + saved) +
                               " where the run here has " + type());
    const auto saved = lines_of(read_text(archive, "parameters"));
    const auto here = lines_of(parameters());
    for (std::size_t i = 0; i < std::max(saved.size(), here.size()); ++i) {
      const auto shown = [i](const auto& lines) { return i < lines.size() ? lines[i] : "missing"; };
      if (shown(saved) != shown(here))
        throw std::runtime_error("it holds an optimizer whose parameter " + std::to_string(i) + " is (" + shown(saved) +
                                 "), but here it is (" + shown(here) + ")");
    }
  }

  // Loads into copies of the groups, so that an error inside load() leaves the optimizer as it is.
  void rehearse(InputArchive& state) {
    const auto swap_in = [this](auto& groups, auto& states) {
      std::swap(optimizer_.param_groups(), groups);
      std::swap(optimizer_.state(), states);
    };
    auto groups = optimizer_.param_groups();
    std::remove_reference_t<decltype(optimizer_.state())> states;
    swap_in(groups, states);
    try {
      optimizer_.load(state);
    } catch (...) {
      swap_in(groups, states);
      throw;
    }
    swap_in(groups, states);
  }

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<torch::nn::Module> module_;
};

class SamplerPart : public Part {
 public:
  explicit SamplerPart(DistributedSampler& sampler) : sampler_(sampler) {}

  void write(OutputArchive& archive) const override { sampler_.save(archive); }

  // A sampler of the same kind takes the state first, and refuses what does not fit.
  Commit stage(std::shared_ptr<InputArchive> archive) override {
    DistributedSampler rehearsal(sampler_.dataset_size(), {.num_replicas = sampler_.num_replicas(),
                                                           .rank = sampler_.rank(),
                                                           .drop_last = sampler_.drop_last(),
                                                           .pad = sampler_.pads()});
    rehearsal.load(*archive);
    return [this, saved = rehearsal.state()] { sampler_.restore(saved); };
  }

 private:
  DistributedSampler& sampler_;
};

}  // namespace

std::unique_ptr<Part> make_part(torch::optim::Optimizer& optimizer, std::shared_ptr<torch::nn::Module> module) {
  return std::make_unique<OptimizerPart>(optimizer, std::move(module));
}

std::unique_ptr<Part> make_part(DistributedSampler& sampler) { return std::make_unique<SamplerPart>(sampler); }

}  // namespace ddp::checkpoint
