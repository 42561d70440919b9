#include <ATen/core/grad_mode.h>

#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "train/checkpoint_state.hpp"

namespace ddp::checkpoint {
namespace {

constexpr std::size_t kDifferencesShown = 5;

// On the CPU, and with a storage of its own where it is part of a larger one, which would be written as a whole.
at::Tensor to_write(const at::Tensor& tensor) {
  auto copy = tensor.detach().cpu();
  const auto bytes = static_cast<std::size_t>(copy.numel()) * copy.element_size();
  return copy.storage().nbytes() == bytes ? copy : copy.clone();
}

std::string kind_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << ' ' << tensor.sizes();
  return text.str();
}

// Compares a module with an archive, name by name.
class Comparison {
 public:
  void compare(const torch::nn::Module& module, InputArchive& archive, const std::string& prefix) {
    auto unclaimed = archive.keys();
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) compare(entry, archive, prefix, unclaimed);
    for (const auto& entry : module.named_buffers(/*recurse=*/false)) compare(entry, archive, prefix, unclaimed);
    for (const auto& child : module.named_children()) {
      InputArchive nested;
      if (!child.value()->is_serializable()) continue;
      std::erase(unclaimed, child.key());
      if (archive.try_read(child.key(), nested))
        compare(*child.value(), nested, prefix + child.key() + '.');
      else
        missing(*child.value(), prefix + child.key() + '.');
    }
    for (const auto& key : unclaimed) differences_.push_back(prefix + key + " is only in the file");
  }

  void forgive(const std::string& key) { std::erase(differences_, key + " is only in the file"); }

  void require_none() const {
    if (differences_.empty()) return;
    std::string text = "it holds another model: ";
    for (std::size_t i = 0; i < differences_.size() && i < kDifferencesShown; ++i)
      text += (i == 0 ? "" : ", ") + differences_[i];
    if (differences_.size() > kDifferencesShown)
      text += ", and " + std::to_string(differences_.size() - kDifferencesShown) + " more";
    throw std::runtime_error(text);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> live_and_saved;

 private:
  using Entry = torch::OrderedDict<std::string, at::Tensor>::Item;

  void compare(const Entry& entry, InputArchive& archive, const std::string& prefix,
               std::vector<std::string>& unclaimed) {
    c10::IValue value;
    std::erase(unclaimed, entry.key());
    if (!archive.try_read(entry.key(), value) || !value.isTensor()) return missing(prefix + entry.key());
    const auto& saved = value.toTensor();
    const auto live_kind = kind_of(entry.value());
    const auto saved_kind = kind_of(saved);
    if (live_kind == saved_kind)
      live_and_saved.emplace_back(entry.value(), saved);
    else
      differences_.push_back(prefix + entry.key() + " is " + saved_kind + " in the file and " + live_kind + " here");
  }

  void missing(const std::string& name) { differences_.push_back(name + " is not in the file"); }
  void missing(const torch::nn::Module& module, const std::string& prefix) {
    for (const auto& entry : module.named_parameters()) missing(prefix + entry.key());
    for (const auto& entry : module.named_buffers()) missing(prefix + entry.key());
  }

  std::vector<std::string> differences_;
};

}  // namespace

void write_module(const torch::nn::Module& module, OutputArchive& archive) {
  for (const auto& entry : module.named_parameters(/*recurse=*/false))
    archive.write(entry.key(), to_write(entry.value()));
  for (const auto& entry : module.named_buffers(/*recurse=*/false))
    archive.write(entry.key(), to_write(entry.value()), /*is_buffer=*/true);
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    OutputArchive nested(archive.compilation_unit());
    write_module(*child.value(), nested);
    archive.write(child.key(), nested);
  }
}

Commit stage_module(const torch::nn::Module& module, InputArchive& archive, const std::string& reserved) {
  Comparison comparison;
  comparison.compare(module, archive, "");
  comparison.forgive(reserved);
  comparison.require_none();
  return [pairs = std::move(comparison.live_and_saved)] {
    const at::NoGradGuard no_grad;
    for (const auto& [live, saved] : pairs) at::Tensor(live).copy_(saved);
  };
}

}  // namespace ddp::checkpoint
