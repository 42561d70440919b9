#include "ddp/data_parallel_core.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <torch/nn/modules/embedding.h>
#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "comm/call_plan.hpp"
#include "ddp/log.hpp"
#include "reduce/broadcast.hpp"
#include "reduce/reducer.hpp"
#include "reduce/same_model.hpp"
#include "train/allocator.hpp"
#include "train/core_share.hpp"
#include "train/device_use.hpp"
#include "train/reducer_memory.hpp"
#include "train/smoke_test/request.hpp"
#include "train/synced_mean.hpp"

namespace ddp {
namespace {

std::int64_t cap_in_bytes(double mebibytes, const char* option) {
  if (!(mebibytes > 0)) throw std::logic_error(std::string("ddp: ") + option + " must be above zero");
  return static_cast<std::int64_t>(std::ceil(std::min(mebibytes, 1e9) * 1024 * 1024));
}

using Names = std::unordered_set<std::string>;
using Tensors = std::unordered_set<const c10::TensorImpl*>;

// Of Embedding and EmbeddingBag with sparse(true).
Tensors weights_with_sparse_gradients(const torch::nn::Module& module) {
  Tensors weights;
  module.apply([&](const torch::nn::Module& part) {
    if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&part);
        embedding != nullptr && embedding->options.sparse())
      weights.insert(embedding->weight.unsafeGetTensorImpl());
    if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&part);
        bag != nullptr && bag->options.sparse())
      weights.insert(bag->weight.unsafeGetTensorImpl());
  });
  return weights;
}

// Under any of their names.
Tensors tensors_named(const torch::nn::Module& module, const std::vector<std::string>& names) {
  const auto parameters = module.named_parameters(), buffers = module.named_buffers();
  Tensors tensors;
  for (const auto& name : names)
    tensors.insert((parameters.contains(name) ? parameters[name] : buffers[name]).unsafeGetTensorImpl());
  return tensors;
}

// Distinct trainable parameters in registration order; tied ones with all their names.
std::vector<Parameter> trainable(const torch::nn::Module& module, const Tensors& ignored, const Names& sparse) {
  const auto sparse_weights = weights_with_sparse_gradients(module);
  std::vector<Parameter> parameters;
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  for (const auto& entry : module.named_parameters()) {
    const auto& tensor = entry.value();
    if (!tensor.defined() || !tensor.requires_grad() || ignored.count(tensor.unsafeGetTensorImpl()) > 0) continue;
    const auto [known, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), parameters.size());
    if (is_new)
      parameters.push_back({entry.key(), tensor, sparse_weights.count(tensor.unsafeGetTensorImpl()) > 0});
    else
      parameters[known->second].name += " = " + entry.key();
    if (sparse.count(entry.key()) > 0) parameters[known->second].is_sparse = true;
  }
  return parameters;
}

// All that ranks hold in common.
std::vector<ModelTensor> model_tensors(const torch::nn::Module& module, const Tensors& ignored) {
  std::vector<ModelTensor> tensors;
  const auto add = [&](const char* role, const auto& entries) {
    for (const auto& entry : entries)
      if (entry.value().defined() && ignored.count(entry.value().unsafeGetTensorImpl()) == 0)
        tensors.push_back({role, entry.key(), entry.value()});
  };
  add("parameter", module.named_parameters());
  add("buffer", module.named_buffers());
  return tensors;
}

std::vector<at::Tensor> buffers_of(const std::vector<ModelTensor>& tensors) {
  std::vector<at::Tensor> buffers;
  for (const auto& [role, name, tensor] : tensors)
    if (role == "buffer") buffers.push_back(tensor);
  return buffers;
}

std::vector<at::Tensor> values_of(const std::vector<ModelTensor>& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& entry : tensors) values.push_back(entry.tensor);
  return values;
}

void require_known(const torch::nn::Module& module, const std::vector<std::string>& names, const char* option,
                   bool buffers_too) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  for (const auto& name : names)
    if (!parameters.contains(name) && !(buffers_too && buffers.contains(name)))
      throw std::logic_error(std::string("ddp: ") + option + " names " + name + ", but the module has no such " +
                             (buffers_too ? "parameter or buffer" : "parameter"));
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

// The first batch norm whose forward is collective, by its name; empty: none.
std::string synchronised_norm(torch::nn::Module& module) {
  std::string found;
  module.apply([&](const std::string& name, torch::nn::Module& part) {
    if (found.empty() && is_synchronised(part)) found = name.empty() ? part.name() : name;
  });
  return found;
}

std::vector<Parameter> frozen(const std::vector<ModelTensor>& tensors) {
  std::vector<Parameter> parameters;
  for (const auto& [role, name, tensor] : tensors)
    if (role == "parameter" && !tensor.requires_grad()) parameters.push_back({name, tensor});
  return parameters;
}

std::string text_of(const DistributedDataParallelOptions& options, const std::vector<Parameter>& parameters) {
  std::ostringstream text;
  text.precision(17);  // caps that differ at all may give different buckets
  text << "bucket_cap_mb " << options.bucket_cap_mb << ", first_bucket_cap_mb " << options.first_bucket_cap_mb
       << ", broadcast_buffers " << options.broadcast_buffers << ", find_unused_parameters "
       << options.find_unused_parameters << ", static_graph " << options.static_graph << ", weight_by_samples "
       << options.weight_by_samples << ", comm_hook " << (options.comm_hook ? options.comm_hook->name() : "none")
       << ", ignored_parameters";
  for (const auto& name : options.ignored_parameters) text << ' ' << name;
  text << ", sparse gradients of";
  for (const auto& parameter : parameters)
    if (parameter.is_sparse) text << ' ' << parameter.name;
  return text.str();
}

}  // namespace

struct DataParallelCore::Impl {
  std::shared_ptr<ProcessGroup> group;
  bool broadcast_buffers = true;
  bool weights_by_samples = false;
  bool is_joining = false;
  std::string synchronised_norm;                // see there; empty in a world of one
  std::int64_t buffers_sent_in = -1;            // while joining: the round for which they were sent
  std::vector<ModelTensor> tensors;             // that all ranks hold in common
  std::vector<Parameter> frozen;                // when the module was wrapped
  std::unique_ptr<CoalescedBroadcast> buffers;  // null in a world of one and without buffers
  std::unique_ptr<comm::CallPlan> calls;        // of buffers, where there is no reducer
  Tensors averaged;                             // trainable parameters; none in a world of one
  std::unique_ptr<Reducer> reducer;             // null in a world of one and without trainable parameters

  const torch::nn::Module* module = nullptr;  // whose parameters are searched, or null
  std::unordered_set<const c10::TensorImpl*> known;
  std::shared_ptr<CommHook> comm_hook;
  std::optional<at::Device> input_device;
  bool has_looked_at_devices = false;

  void require_known_parameters() const;
  void look_at_devices();
  void send_buffers(bool training);
  void send_buffers_of(int root);
};

DataParallelCore::DataParallelCore(torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                   const DistributedDataParallelOptions& options)
    : impl_(std::make_shared<Impl>()) {
  if (!group) throw std::logic_error("ddp: DistributedDataParallel needs a process group");
  smoke::refuse_unchecked(*group);
  ReducerOptions reducer{.caps = {cap_in_bytes(options.first_bucket_cap_mb, "first_bucket_cap_mb"),
                                  cap_in_bytes(options.bucket_cap_mb, "bucket_cap_mb")},
                         .gradient_as_bucket_view = options.gradient_as_bucket_view,
                         .find_unused_parameters = options.find_unused_parameters,
                         .static_graph = options.static_graph,
                         .weight_by_samples = options.weight_by_samples,
                         .comm_hook = options.comm_hook};
  require_known(module, options.ignored_parameters, "ignored_parameters", true);
  require_known(module, options.sparse_parameters, "sparse_parameters", false);
  impl_->group = std::move(group);
  require_own_device(options.device_ids, options.output_device, *impl_->group);
  if (!options.device_ids.empty()) impl_->input_device = impl_->group->device();
  if (options.keep_freed_memory && impl_->group->device().is_cpu()) keep_freed_memory();
  impl_->broadcast_buffers = options.broadcast_buffers;
  impl_->weights_by_samples = options.weight_by_samples;
  impl_->comm_hook = options.comm_hook;
  const auto ignored = tensors_named(module, options.ignored_parameters);
  impl_->tensors = model_tensors(module, ignored);
  require_usable(impl_->tensors, *impl_->group);
  if (impl_->group->size() == 1) return;

  impl_->synchronised_norm = synchronised_norm(module);
  auto parameters = trainable(module, ignored, {options.sparse_parameters.begin(), options.sparse_parameters.end()});
  for (const auto& parameter : parameters) impl_->averaged.insert(parameter.tensor.unsafeGetTensorImpl());
  verify_same_model(text_of(options, parameters), impl_->tensors, *impl_->group);
  copy_from(0);
  const auto buffers = buffers_of(impl_->tensors);
  if (!buffers.empty()) impl_->buffers = std::make_unique<CoalescedBroadcast>(buffers);
  impl_->frozen = frozen(impl_->tensors);
  // In shared memory a bucket that has left costs nothing until somebody works on it, for which cores must be idle.
  // A device has an engine of its own for it.
  const bool on_device = !impl_->group->device().is_cpu();
  const bool is_free = on_device || impl_->group->backend() == "shm";
  const bool has_cores = has_cores_for_each_rank(*impl_->group, is_free ? at::get_num_threads() + 1 : 1);
  reducer.overlap = options.overlap_communication.value_or(is_free || has_cores);
  reducer.in_background = !on_device && options.overlap_communication.value_or(has_cores);
  if (parameters.empty())
    log::info("DistributedDataParallel: the module has no trainable parameter, nothing to reduce");
  else
    impl_->reducer =
        std::make_unique<Reducer>(std::move(parameters), impl_->group, reducer,
                                  std::make_shared<ControlRecord>(impl_->group->rank(), impl_->group->size()));
  if (impl_->buffers && !impl_->reducer) impl_->calls = std::make_unique<comm::CallPlan>(impl_->group);
  if (!impl_->reducer || !(options.find_unused_parameters || options.static_graph)) return;
  impl_->module = &module;
  for (const auto& parameter : module.parameters()) impl_->known.insert(parameter.unsafeGetTensorImpl());
}

DataParallelCore::~DataParallelCore() = default;

void DataParallelCore::before_forward(bool training) {
  if (!at::GradMode::is_enabled()) return;
  for (const auto& [name, tensor, is_sparse] : impl_->frozen)
    if (tensor.requires_grad())
      throw std::logic_error("ddp: " + name + " was frozen when the module was wrapped and requires gradients now; " +
                             "they would not be averaged: destroy the wrapper and wrap the module again");
  impl_->require_known_parameters();
  impl_->look_at_devices();
  if (impl_->reducer) impl_->reducer->arm();
  impl_->send_buffers(training);
}

// While ranks may leave their loops, a step has exactly one copy, so that those that have left can take part: before
// its first forward, of whatever kind.
void DataParallelCore::Impl::send_buffers(bool training) {
  if (!broadcast_buffers || !buffers) return;
  if (!is_joining) {
    if (training && (!reducer || reducer->synchronises())) send_buffers_of(0);
  } else if (reducer && std::exchange(buffers_sent_in, reducer->rounds()) != reducer->rounds()) {
    send_buffers_of(reducer->lowest_active());
  }
}

void DataParallelCore::Impl::send_buffers_of(int root) {
  (reducer ? reducer->calls() : *calls).require_same(1, "forward");
  buffers->run(*group, root);
}

// Once, after the first step, which has touched all that a step touches.
void DataParallelCore::Impl::look_at_devices() {
  if (has_looked_at_devices || !reducer || reducer->rounds() == 0) return;
  has_looked_at_devices = true;
  warn_of_other_devices(*group);
}

// Where parameters may be unused, one that was replaced would look so, and the new one would go without an average.
void DataParallelCore::Impl::require_known_parameters() const {
  if (module == nullptr) return;
  bool all_known = true;
  module->apply([&](const torch::nn::Module& part) {
    for (const auto& entry : part.named_parameters(false))
      all_known &= !entry.value().defined() || known.count(entry.value().unsafeGetTensorImpl()) > 0;
  });
  if (all_known) return;
  for (const auto& entry : module->named_parameters())
    if (known.count(entry.value().unsafeGetTensorImpl()) == 0)
      throw std::logic_error("ddp: " + entry.key() + " was registered or replaced after wrapping, so that it would " +
                             "not be averaged; wrap the module after that");
}

void DataParallelCore::set_joining(bool on) {
  if (on && !impl_->synchronised_norm.empty())
    throw std::logic_error("ddp: join() and the synchronised batch norm " + impl_->synchronised_norm +
                           " do not go together: a rank that has left its loop cannot stand in for a forward; give " +
                           "all ranks as many batches (an empty one is enough), or use BatchNorm");
  impl_->is_joining = on;
  impl_->buffers_sent_in = -1;
}

bool DataParallelCore::shadow_step(bool counts) {
  if (!impl_->reducer) {  // without gradients no step is known, so buffers wait for the end
    copy_from(0);
    return false;
  }
  impl_->reducer->arm();  // before the buffers, as in a forward
  impl_->send_buffers(true);
  return impl_->reducer->shadow(counts);
}

void DataParallelCore::copy_from(int root) {
  if (impl_->group->size() > 1) broadcast_in_chunks(values_of(impl_->tensors), *impl_->group, root);
}

int DataParallelCore::lowest_active() const { return impl_->reducer ? impl_->reducer->lowest_active() : 0; }

void DataParallelCore::set_samples(std::int64_t samples) {
  if (!impl_->weights_by_samples) throw std::logic_error("ddp: set_samples() needs the option weight_by_samples");
  if (samples < 0) throw std::logic_error("ddp: set_samples() wants no number below zero");
  if (impl_->reducer) impl_->reducer->set_samples(static_cast<std::uint64_t>(samples));
}

void DataParallelCore::set_loss_scale(float scale) {
  if (impl_->reducer) impl_->reducer->set_loss_scale(scale);
}

void DataParallelCore::hand_means_to(std::weak_ptr<MeanTaker> taker) {
  if (!impl_->reducer) return;
  impl_->group->barrier({.label = "step_in_backward"});
  impl_->reducer->hand_means_to(std::move(taker));
}

bool DataParallelCore::averages(const at::Tensor& parameter) const {
  return impl_->group->size() == 1 || impl_->averaged.count(parameter.unsafeGetTensorImpl()) > 0;
}

std::int64_t DataParallelCore::micro_batches(bool anew) {
  return impl_->reducer ? impl_->reducer->micro_batches(anew) : 0;
}

void DataParallelCore::watch(const at::Tensor& output) {
  if (impl_->reducer) impl_->reducer->watch(output);
}

void DataParallelCore::set_broadcast_buffers(bool on) { impl_->broadcast_buffers = on; }
std::optional<at::Device> DataParallelCore::input_device() const noexcept { return impl_->input_device; }
const std::shared_ptr<ProcessGroup>& DataParallelCore::group() const { return impl_->group; }
std::int64_t DataParallelCore::bucket_bytes() const { return impl_->reducer ? impl_->reducer->bucket_bytes() : 0; }
const ReducerStats& DataParallelCore::reducer_stats() const {
  static const ReducerStats none;
  return impl_->reducer ? impl_->reducer->stats() : none;
}

const std::shared_ptr<CommHook>& DataParallelCore::comm_hook() const noexcept { return impl_->comm_hook; }

CheckpointValue DataParallelCore::reducer_memory() const {
  const std::weak_ptr<Impl> weak = impl_;
  return {.state = [weak]() -> c10::IValue {
            const auto impl = weak.lock();
            const auto memory = impl && impl->reducer ? impl->reducer->memory() : std::nullopt;
            return memory ? value_of(*memory) : c10::IValue();
          },
          .stage = [weak](const c10::IValue& saved) -> std::function<void()> {
            return [weak, memory = memory_in(saved)] {
              const auto impl = weak.lock();
              if (impl && impl->reducer) impl->reducer->restore(memory);
            };
          }};
}

NoSync::NoSync(DataParallelCore& core) : core_(&core) {
  if (core_->impl_->reducer) core_->impl_->reducer->enter_no_sync();
}
NoSync::NoSync(NoSync&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
NoSync::~NoSync() {
  if (core_ != nullptr && core_->impl_->reducer) core_->impl_->reducer->leave_no_sync();
}

}  // namespace ddp
