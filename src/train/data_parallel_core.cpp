#include "ddp/data_parallel_core.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "ddp/log.hpp"
#include "reduce/broadcast.hpp"
#include "reduce/reducer.hpp"
#include "reduce/same_model.hpp"

namespace ddp {
namespace {

std::int64_t cap_in_bytes(double mebibytes, const char* option) {
  if (!(mebibytes > 0)) throw std::logic_error(std::string("ddp: ") + option + " must be above zero");
  return static_cast<std::int64_t>(std::ceil(std::min(mebibytes, 1e9) * 1024 * 1024));
}

// Distinct trainable parameters in registration order; tied ones with all their names.
std::vector<Parameter> trainable(const torch::nn::Module& module) {
  std::vector<Parameter> parameters;
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  for (const auto& entry : module.named_parameters()) {
    const auto& tensor = entry.value();
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    const auto [known, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), parameters.size());
    if (is_new)
      parameters.push_back({entry.key(), tensor});
    else
      parameters[known->second].name += " = " + entry.key();
  }
  return parameters;
}

std::vector<at::Tensor> defined_buffers(const torch::nn::Module& module) {
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : module.buffers())
    if (buffer.defined()) buffers.push_back(buffer);
  return buffers;
}

std::vector<ModelTensor> model_tensors(const torch::nn::Module& module) {
  std::vector<ModelTensor> tensors;
  for (const auto& entry : module.named_parameters())
    if (entry.value().defined()) tensors.push_back({"parameter", entry.key(), entry.value()});
  for (const auto& entry : module.named_buffers())
    if (entry.value().defined()) tensors.push_back({"buffer", entry.key(), entry.value()});
  return tensors;
}

void require_usable(const std::vector<ModelTensor>& tensors, const ProcessGroup& group) {
  for (const auto& [role, name, tensor] : tensors) {
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
      throw std::logic_error("ddp: " + role + " " + name + " is expanded, several of its elements share one place in " +
                             "memory; register a contiguous() copy");
    if (tensor.device() != group.device())
      throw std::logic_error("ddp: " + role + " " + name + " is on " + tensor.device().str() +
                             ", but this rank works on " + group.device().str() +
                             "; move the whole module there before wrapping it (one process a device)");
  }
}

std::vector<Parameter> frozen(const std::vector<ModelTensor>& tensors) {
  std::vector<Parameter> parameters;
  for (const auto& [role, name, tensor] : tensors)
    if (role == "parameter" && !tensor.requires_grad()) parameters.push_back({name, tensor});
  return parameters;
}

std::string text_of(const DistributedDataParallelOptions& options) {
  std::ostringstream text;
  text << "bucket_cap_mb " << options.bucket_cap_mb << ", first_bucket_cap_mb " << options.first_bucket_cap_mb
       << ", broadcast_buffers " << options.broadcast_buffers;
  return text.str();
}

}  // namespace

struct DataParallelCore::Impl {
  std::shared_ptr<ProcessGroup> group;
  bool broadcast_buffers = true;
  std::vector<Parameter> frozen;                // when the module was wrapped
  std::unique_ptr<CoalescedBroadcast> buffers;  // null in a world of one
  std::unique_ptr<Reducer> reducer;             // null in a world of one and without trainable parameters
};

DataParallelCore::DataParallelCore(torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                   const DistributedDataParallelOptions& options)
    : impl_(std::make_unique<Impl>()) {
  if (!group) throw std::logic_error("ddp: DistributedDataParallel needs a process group");
  const ReducerOptions reducer{.caps = {cap_in_bytes(options.first_bucket_cap_mb, "first_bucket_cap_mb"),
                                        cap_in_bytes(options.bucket_cap_mb, "bucket_cap_mb")},
                               .gradient_as_bucket_view = options.gradient_as_bucket_view};
  impl_->group = std::move(group);
  impl_->broadcast_buffers = options.broadcast_buffers;
  const auto tensors = model_tensors(module);
  require_usable(tensors, *impl_->group);
  if (impl_->group->size() == 1) return;

  verify_same_model(text_of(options), tensors, *impl_->group);
  std::vector<at::Tensor> values;
  for (const auto& entry : tensors) values.push_back(entry.tensor);
  broadcast_in_chunks(values, *impl_->group);
  impl_->buffers = std::make_unique<CoalescedBroadcast>(defined_buffers(module));
  impl_->frozen = frozen(tensors);
  auto parameters = trainable(module);
  if (parameters.empty())
    log::info("DistributedDataParallel: the module has no trainable parameter, nothing to reduce");
  else
    impl_->reducer = std::make_unique<Reducer>(std::move(parameters), impl_->group, reducer);
}

DataParallelCore::~DataParallelCore() = default;

void DataParallelCore::before_forward(bool training) {
  if (!at::GradMode::is_enabled()) return;
  for (const auto& [name, tensor] : impl_->frozen)
    if (tensor.requires_grad())
      throw std::logic_error("ddp: " + name + " was frozen when the module was wrapped and requires gradients now; " +
                             "they would not be averaged: destroy the wrapper and wrap the module again");
  if (impl_->reducer) impl_->reducer->arm();
  const bool synchronises = !impl_->reducer || impl_->reducer->synchronises();
  if (training && synchronises && impl_->broadcast_buffers && impl_->buffers) impl_->buffers->run(*impl_->group);
}

void DataParallelCore::watch(const at::Tensor& output) {
  if (impl_->reducer) impl_->reducer->watch(output);
}

void DataParallelCore::set_broadcast_buffers(bool on) { impl_->broadcast_buffers = on; }
const std::shared_ptr<ProcessGroup>& DataParallelCore::group() const { return impl_->group; }
std::int64_t DataParallelCore::bucket_bytes() const { return impl_->reducer ? impl_->reducer->bucket_bytes() : 0; }

NoSync::NoSync(DataParallelCore& core) : core_(&core) {
  if (core_->impl_->reducer) core_->impl_->reducer->enter_no_sync();
}
NoSync::NoSync(NoSync&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
NoSync::~NoSync() {
  if (core_ != nullptr && core_->impl_->reducer) core_->impl_->reducer->leave_no_sync();
}

}  // namespace ddp
