#pragma once
/// mean_witness.hpp: notices that gradients which were averaged already are added to.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp {

/// Remembers one gradient as a reduction has left it: who adds up micro-batches without no_sync leaves it so.
/// Threads: one at a time; the reducer's lock covers it.
class MeanWitness {
 public:
  /// Of the first parameter with a dense gradient.
  void remember(const std::vector<at::Tensor>& parameters) {
    gradient_ = nullptr;
    for (index_ = 0; index_ < parameters.size() && gradient_ == nullptr; ++index_)
      if (const auto& gradient = parameters[index_].grad(); gradient.defined() && gradient.layout() == at::kStrided) {
        gradient_ = gradient.unsafeGetTensorImpl();
        version_ = gradient._version();
      }
  }
  /// False if it was reset, replaced, zeroed, clipped or changed in any other way.
  bool is_unchanged(const std::vector<at::Tensor>& parameters) const {
    if (gradient_ == nullptr) return false;
    const auto& gradient = parameters[index_ - 1].grad();
    return gradient.defined() && gradient.unsafeGetTensorImpl() == gradient_ && gradient._version() == version_;
  }

 private:
  std::size_t index_ = 0;                      // behind the parameter
  const c10::TensorImpl* gradient_ = nullptr;  // only compared
  std::int64_t version_ = 0;
};

}  // namespace ddp
