#include "reduce/flat_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "ddp/log.hpp"
#include "reduce/fault_text.hpp"
#include "reduce/side_by_side.hpp"

namespace ddp {
namespace {

// Not a view of a complex conjugate, not named, no subclass, ...: set_data() would lose what makes it so.
bool is_plain(const at::Tensor& tensor) {
  return tensor.key_set() == at::empty({0}, at::TensorOptions().device(at::kCPU)).key_set();
}

// Memory that comes from elsewhere may be known elsewhere, by its address alone: a file, or another process.
bool is_from_libtorch(const at::Tensor& tensor) {
  const auto deleter = tensor.storage().data_ptr().get_deleter();
  return deleter == c10::GetCPUAllocator()->raw_deleter() || is_from_side_by_side(tensor);
}

// Why its data cannot be moved, or null.
const char* obstacle(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return "a tensor of a special kind";
  if (!tensor.is_non_overlapping_and_dense()) return "with gaps or overlaps";
  if (tensor.storage().use_count() > 1) return "another tensor shares its memory";
  if (!is_from_libtorch(tensor)) return "in memory that LibTorch did not allocate";
  return nullptr;
}

}  // namespace

void FlatParameters::lay(const std::vector<Parameter>& parameters) {
  const c10::InferenceMode off(false);  // in which the pieces would be tensors of a special kind
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> movable;
  std::vector<std::string> left;
  for (const auto& [name, tensor, is_sparse] : parameters) {
    if (!tensor.is_cpu() || tensor.numel() == 0) continue;
    if (const auto* reason = obstacle(tensor))
      left.push_back(name + " (" + reason + ")");
    else
      movable.push_back(tensor);
  }
  auto pieces = side_by_side(movable);
  for (std::size_t i = 0; i < movable.size(); ++i) movable[i].set_data(pieces[i].copy_(movable[i]));
  tell(left);
}

void FlatParameters::tell(const std::vector<std::string>& left) {
  std::vector<std::string> news;
  std::copy_if(left.begin(), left.end(), std::back_inserter(news),
               [this](const std::string& text) { return told_.insert(text).second; });
  if (news.empty()) return;
  log::info("flatten_parameters: these stay where they are: {}", joined(news));
}

}  // namespace ddp
