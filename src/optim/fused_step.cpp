#include "optim/fused_step.hpp"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "reduce/distinct_gradients.hpp"
#include "reduce/same_memory.hpp"
#include "reduce/side_by_side.hpp"

namespace ddp::optim {
namespace {

using torch::optim::OptimizerParamState;

bool is_dense_on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense() &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble) && !tensor.is_neg() &&
         !tensor._is_zerotensor() && !at::isTensorSubclassLike(tensor);
}

std::byte* bytes_of(const at::Tensor* tensor) {
  return tensor == nullptr ? nullptr : static_cast<std::byte*>(tensor->mutable_data_ptr());
}

const std::byte* start_of(const at::Tensor& tensor) { return static_cast<const std::byte*>(tensor.const_data_ptr()); }
// Behind its last element, whatever lies between them.
const std::byte* end_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return start_of(tensor);
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return start_of(tensor) + static_cast<std::size_t>(last + 1) * tensor.element_size();
}

// A state that a pass can take beside the parameter, once it is laid like it.
bool fits(const at::Tensor& parameter, const at::Tensor& state) {
  return state.is_cpu() && state.layout() == at::kStrided && state.scalar_type() == parameter.scalar_type() &&
         state.sizes() == parameter.sizes();
}

void lay_like(const at::Tensor& parameter, at::Tensor& tensor) {
  if (!is_dense_on_cpu(tensor) || !same_layout(tensor, parameter))
    tensor = at::empty_like(parameter, parameter.options().requires_grad(false)).copy_(tensor);
}

// Those that are stored as their conjugate or negative one by one, for LibTorch's operator of many does not take them.
void scale_all(const std::vector<at::Tensor>& gradients, double scale) {
  std::vector<at::Tensor> ordinary;
  for (const auto& gradient : gradients)
    if (gradient.is_conj() || gradient.is_neg())
      gradient.mul_(scale);
    else
      ordinary.push_back(gradient);
  if (!ordinary.empty()) at::_foreach_mul_(ordinary, scale);
}

// Parameters and gradients lie side by side, but not their states, that came out of a file, say.
bool has_states_apart(const std::vector<Piece>& pieces) {
  const auto is_apart = [](const Piece& piece, const Piece& next) {
    return follows(piece, next) && !state_follows(piece, next);
  };
  return std::adjacent_find(pieces.begin(), pieces.end(), is_apart) != pieces.end();
}

// While it lives, the optimizer's groups hold nothing but what is added.
class OnlyThese {
 public:
  explicit OnlyThese(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
    for (auto& group : optimizer_.param_groups()) parameters_.push_back(std::exchange(group.params(), {}));
  }
  ~OnlyThese() {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      optimizer_.param_groups()[i].params() = std::move(parameters_[i]);
  }
  OnlyThese(const OnlyThese&) = delete;
  OnlyThese& operator=(const OnlyThese&) = delete;

  void add(std::size_t group, const at::Tensor& parameter) {
    optimizer_.param_groups()[group].params().push_back(parameter);
  }

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> parameters_;
};

}  // namespace

void FusedStep::add(std::size_t group, const at::Tensor& parameter) {
  if (!parameter.defined()) return;
  const auto& gradient = parameter.grad();
  if (!gradient.defined()) return;
  if (gradient.layout() != at::kStrided)
    throw std::runtime_error(std::string("ddp: optim::") + rule_.name() +
                             ": a gradient is sparse, which this optimizer does not take; give parameters with sparse "
                             "gradients to an optimizer of their own, such as torch::optim::SGD without momentum, or "
                             "make the layer's gradients dense with sparse(false)");
  const bool is_plain = is_dense_on_cpu(parameter) && gradient.is_cpu() && !gradient._is_zerotensor() &&
                        gradient.scalar_type() == parameter.scalar_type() && !at::isTensorSubclassLike(gradient);
  entries_.push_back({.group = group, .parameter = parameter, .gradient = gradient, .is_plain = is_plain});
}

std::vector<at::Tensor> FusedStep::gradients() const {
  std::vector<at::Tensor> parameters;
  for (const auto& entry : entries_) parameters.push_back(entry.parameter);
  return distinct_gradients(parameters);
}

void FusedStep::run(double scale, const std::function<void()>& step_as_libtorch) {
  const auto entries = plain_by_address();
  lay_states(entries, true);
  count_steps(entries);
  auto work = pieces(entries);
  if (has_states_apart(work)) {
    lay_states(entries, false);
    work = pieces(entries);
  }
  for (auto& step : steps_) std::visit([&](auto& kind) { kind.gradient_scale = scale; }, step);
  run_pass(work, steps_);
  for (const auto* entry : entries) entry->parameter.unsafeGetTensorImpl()->bump_version();
  run_others(scale, step_as_libtorch);
}

const torch::optim::OptimizerOptions& FusedStep::options(const Entry& entry) const {
  return optimizer_.param_groups()[entry.group].options();
}

// A parameter that stands twice, or shares memory with another one, is stepped by LibTorch, one after the other.
std::vector<FusedStep::Entry*> FusedStep::plain_by_address() {
  std::vector<Entry*> entries;
  for (auto& entry : entries_)
    if (entry.parameter.is_cpu() && entry.parameter.has_storage()) entries.push_back(&entry);
  const auto is_below = [](const Entry* a, const Entry* b) { return start_of(a->parameter) < start_of(b->parameter); };
  if (!std::is_sorted(entries.begin(), entries.end(), is_below))
    std::stable_sort(entries.begin(), entries.end(), is_below);
  Entry* highest = nullptr;
  for (auto* entry : entries) {
    if (highest != nullptr && end_of(highest->parameter) > start_of(entry->parameter))
      highest->is_plain = entry->is_plain = false;
    if (highest == nullptr || end_of(entry->parameter) > end_of(highest->parameter)) highest = entry;
  }
  for (auto* entry : entries) find_state(*entry);
  std::erase_if(entries, [](const Entry* entry) { return !entry->is_plain; });
  return entries;
}

void FusedStep::find_state(Entry& entry) {
  if (!entry.is_plain) return;
  auto& states = optimizer_.state();
  const auto found = states.find(entry.parameter.unsafeGetTensorImpl());
  std::unique_ptr<OptimizerParamState> made;
  auto& owner = found == states.end() ? made : found->second;
  entry.tensors = rule_.tensors(owner, options(entry));
  entry.state = owner.get();
  entry.is_new = std::none_of(entry.tensors.begin(), entry.tensors.end(),
                              [](const auto* tensor) { return tensor != nullptr && tensor->defined(); });
  for (auto* tensor : entry.tensors)
    if (tensor != nullptr && tensor->defined()) entry.is_plain &= fits(entry.parameter, *tensor);
  if (made) states.emplace(entry.parameter.unsafeGetTensorImpl(), std::move(made));
  if (!entry.is_plain) return;
  for (auto* tensor : entry.tensors)
    if (tensor != nullptr && tensor->defined()) lay_like(entry.parameter, *tensor);
  lay_like(entry.parameter, entry.gradient);
}

// In the order of the entries; what is not there yet is zeros.
void FusedStep::lay_states(const std::vector<Entry*>& entries, bool only_missing) {
  for (std::size_t i = 0; i < kMaxStates; ++i) {
    std::vector<at::Tensor*> tensors;
    std::vector<at::Tensor> parameters;
    for (const auto* entry : entries) {
      auto* const tensor = entry->tensors[i];
      if (tensor == nullptr || (only_missing && tensor->defined())) continue;
      tensors.push_back(tensor);
      parameters.push_back(entry->parameter);
    }
    auto laid = side_by_side(parameters);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t]->defined()) laid[t].copy_(*tensors[t]);
      *tensors[t] = laid[t];
    }
  }
}

void FusedStep::count_steps(const std::vector<Entry*>& entries) {
  std::map<std::pair<std::size_t, std::int64_t>, std::size_t> known;  // by group and number
  for (auto* entry : entries) {
    const auto number = rule_.advance(entry->state, entry->is_new);
    const auto [place, is_unknown] = known.emplace(std::pair(entry->group, number), steps_.size());
    if (is_unknown) steps_.push_back(rule_.step(options(*entry), number));
    entry->step = place->second;
  }
}

std::vector<Piece> FusedStep::pieces(const std::vector<Entry*>& entries) {
  std::vector<Piece> pieces;
  for (const auto* entry : entries) {
    if (entry->parameter.numel() == 0) continue;
    auto& piece = pieces.emplace_back(Piece{.dtype = entry->parameter.scalar_type(),
                                            .parameter = bytes_of(&entry->parameter),
                                            .gradient = start_of(entry->gradient),
                                            .state = {},
                                            .count = static_cast<std::size_t>(entry->parameter.numel()),
                                            .step = entry->step});
    for (std::size_t i = 0; i < kMaxStates; ++i) piece.state[i] = bytes_of(entry->tensors[i]);
  }
  return pieces;
}

void FusedStep::run_others(double scale, const std::function<void()>& step_as_libtorch) {
  std::vector<at::Tensor> others;
  OnlyThese these(optimizer_);
  for (const auto& entry : entries_) {
    if (entry.is_plain) continue;
    these.add(entry.group, entry.parameter);
    others.push_back(entry.parameter);
  }
  if (others.empty()) return;
  if (scale != 1) scale_all(distinct_gradients(others), scale);
  step_as_libtorch();
}

}  // namespace ddp::optim
