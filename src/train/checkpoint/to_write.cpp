#include <stdexcept>
#include <utility>
#include <vector>

#include "train/checkpoint/parts.hpp"
#include "train/checkpoint/pickle_format.hpp"

namespace ddp::checkpoint {

bool is_expanded(const at::Tensor& tensor) {
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) return true;
  return false;
}

at::Tensor to_write(const at::Tensor& tensor, Tensors tensors) {
  if (!tensor.defined()) return tensor;
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw std::runtime_error("a sparse or quantized tensor cannot be saved");
  auto plain = tensor.detach().resolve_conj().resolve_neg().cpu();
  const auto bytes = static_cast<std::size_t>(plain.numel()) * plain.element_size();
  if (!plain.is_non_overlapping_and_dense()) return plain.contiguous().clone();
  const bool is_own = !plain.is_alias_of(tensor);
  return plain.storage().nbytes() == bytes && (is_own || tensors == Tensors::shared) ? plain : plain.clone();
}

namespace {

Value to_write(const Value& value, Tensors tensors, int depth) {
  if (depth > pickle::kDeepest) throw std::runtime_error("values that lie so deep in each other cannot be written");
  if (value.isTensor()) return checkpoint::to_write(value.toTensor(), tensors);
  if (value.isList()) {
    auto list = empty_list();
    for (const auto& element : value.toListRef()) list.push_back(to_write(element, tensors, depth + 1));
    return list;
  }
  if (value.isTuple()) {
    std::vector<Value> elements;
    for (const auto& element : value.toTupleRef().elements()) elements.push_back(to_write(element, tensors, depth + 1));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isGenericDict()) {
    auto dict = empty_dict();
    for (const auto& entry : value.toGenericDict())
      dict.insert(entry.key(), to_write(entry.value(), tensors, depth + 1));
    return dict;
  }
  return value;
}

}  // namespace

Value to_write(const Value& value, Tensors tensors) { return to_write(value, tensors, 0); }

}  // namespace ddp::checkpoint
