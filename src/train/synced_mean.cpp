#include "train/synced_mean.hpp"

#include <ATen/Functions.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <optional>
#include <string>
#include <utility>

#include "ddp/sync_batch_norm.hpp"
#include "train/synced_norm.hpp"

namespace ddp {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Meant for libraries outside of LibTorch, which uses it nowhere. Above autograd, whose part we play for this operator,
// and above autocast.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

/// A running mean with the key, which it keeps when load() or to() gives it other memory. Copies have no use for it.
class SyncedMean final : public c10::TensorImpl {
 public:
  SyncedMean(const at::Tensor& tensor, const torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
             bool is_tracked)
      : c10::TensorImpl(c10::Storage(tensor.storage()), tensor.key_set().add(kKey), tensor.dtype()),
        module_(module.weak_from_this()),
        group_(std::move(group)),
        is_tracked_(is_tracked) {
    const auto* original = tensor.unsafeGetTensorImpl();
    copy_tensor_metadata(original, this, original->version_counter(), /*allow_tensor_metadata_change=*/true);
    key_set_ = key_set_.add(kKey);
    refresh_numel();
    refresh_contiguous();
  }

  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override {
    c10::TensorImpl::shallow_copy_from(other);
    key_set_ = key_set_.add(kKey);
  }

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  /// False: it stands in for statistics that the module does not track.
  bool is_tracked() const { return is_tracked_; }
  /// Without statistics the operator is asked to train in eval mode, too.
  bool is_in_training() const {
    const auto module = module_.lock();
    return is_tracked_ || !module || module->is_training();
  }

 private:
  std::weak_ptr<const torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  bool is_tracked_;
};

const SyncedMean* synced(const OptionalTensor& running_mean) {
  if (!running_mean || !running_mean->defined()) return nullptr;
  return dynamic_cast<const SyncedMean*>(running_mean->unsafeGetTensorImpl());
}

at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                      double momentum, double eps, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard beneath(kKey);
  const auto* mean = synced(running_mean);
  const bool is_tracked = mean == nullptr || mean->is_tracked();
  const auto own_mean = is_tracked ? running_mean : std::nullopt, own_var = is_tracked ? running_var : std::nullopt;
  if (mean == nullptr || !training || !mean->is_in_training())
    return at::batch_norm(input, weight, bias, own_mean, own_var, training, momentum, eps, cudnn_enabled);
  return synced_batch_norm(input,
                           {.weight = weight.value_or(at::Tensor()),
                            .bias = bias.value_or(at::Tensor()),
                            .running_mean = own_mean.value_or(at::Tensor()),
                            .running_var = own_var.value_or(at::Tensor())},
                           {.momentum = momentum, .eps = eps}, mean->group());
}

/// For the whole process, from the first conversion on.
struct Kernels {
  Kernels() {
    all.fallback(torch::CppFunction::makeFallthrough());
    ours.impl("batch_norm", torch::dispatch(kKey, batch_norm));
  }
  torch::Library all{torch::Library::IMPL, "_", kKey, __FILE__, __LINE__};
  torch::Library ours{torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__};
};

void install_kernels() { static const Kernels kernels; }

// The registry of buffers is private, and it has to hold the same tensor as the member. Access is not checked in an
// explicit instantiation.
using Buffers = torch::OrderedDict<std::string, at::Tensor> torch::nn::Module::*;
Buffers registry();
template <Buffers member>
struct Registry {
  friend Buffers registry() { return member; }
};
template struct Registry<&torch::nn::Module::buffers_>;

template <class Norm>
void synchronise_as(Norm& norm, const std::shared_ptr<ProcessGroup>& group) {
  const bool is_tracked = norm.options.track_running_stats();
  norm.running_mean = at::Tensor(
      c10::make_intrusive<SyncedMean>(is_tracked ? norm.running_mean : at::empty({0}), norm, group, is_tracked));
  if (is_tracked) (norm.*registry())["running_mean"] = norm.running_mean;
}

/// Calls f with `module` as what it is. False: it is no BatchNorm.
template <class F>
bool as_batch_norm(torch::nn::Module& module, const F& f) {
  const auto as = [&](auto* norm) { return norm != nullptr && (f(*norm), true); };
  return as(dynamic_cast<torch::nn::BatchNorm1dImpl*>(&module)) ||
         as(dynamic_cast<torch::nn::BatchNorm2dImpl*>(&module)) ||
         as(dynamic_cast<torch::nn::BatchNorm3dImpl*>(&module));
}

}  // namespace

bool is_batch_norm(torch::nn::Module& module) {
  return as_batch_norm(module, [](auto&) {});
}

bool is_synchronised(torch::nn::Module& module) {
  bool has_synced_mean = dynamic_cast<const SyncBatchNormImpl*>(&module) != nullptr;
  as_batch_norm(module, [&](auto& norm) { has_synced_mean = synced(norm.running_mean) != nullptr; });
  return has_synced_mean;
}

void synchronise(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  install_kernels();
  as_batch_norm(module, [&](auto& norm) { synchronise_as(norm, group); });
}

}  // namespace ddp
