#include "comm/wire.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>

namespace ddp::comm {
namespace {

[[noreturn]] void misuse(std::string_view operation, const std::string& what) {
  throw std::logic_error(std::string(operation) + ": " + what);
}

// The dtype in which the elements are reduced.
at::ScalarType dtype_on_wire(at::ScalarType dtype, ReduceOp op, const Reductions& backend) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return dtype;
    case at::kHalf:
    case at::kBFloat16:
      return backend.of_half_types && (op != ReduceOp::avg || backend.of_means) ? dtype : at::kFloat;
    case at::kShort:
      return backend.of_int16 ? dtype : at::kInt;
    case at::kBool:
      return at::kByte;
    default:
      misuse("reduction", std::string("dtype ") + c10::toString(dtype) + " cannot be reduced; convert it first");
  }
}

void require_reducible(at::ScalarType dtype, ReduceOp op) {
  const bool complex = at::isComplexType(dtype);
  if (complex && op != ReduceOp::sum && op != ReduceOp::avg)
    misuse("reduction", std::string(name_of(op)) + " is not defined for complex numbers here; reduce parts by hand");
  if (op == ReduceOp::avg && !complex && !at::isFloatingType(dtype))
    misuse("reduction", std::string("avg of ") + c10::toString(dtype) + " would not be exact; sum, then divide");
}

bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

}  // namespace

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

void require_dense(const at::Tensor& tensor, at::Device device, std::string_view operation) {
  if (!tensor.defined()) misuse(operation, "the tensor is undefined");
  if (tensor.layout() != at::kStrided) misuse(operation, "sparse tensors are not supported; use to_dense()");
  if (tensor.is_quantized()) misuse(operation, "quantized tensors are not supported; use dequantize()");
  if (!tensor.is_cpu() && tensor.device() != device)
    misuse(operation, "the tensor is on " + tensor.device().str() + ", the group on " + device.str());
}

void require_writable(const at::Tensor& tensor, at::Device device, std::string_view operation) {
  require_dense(tensor, device, operation);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    misuse(operation, "elements of the tensor share memory (expand()?), so that no result can be written");
}

bool reduces_in_place(const at::Tensor& tensor, ReduceOp op, const Reductions& backend) {
  const auto dtype = tensor.scalar_type();
  return (op != ReduceOp::avg || backend.of_means) && !at::isComplexType(dtype) && is_plain(tensor) &&
         dtype_on_wire(dtype, op, backend) == dtype;
}

Wire wire_for_reduction(const at::Tensor& tensor, ReduceOp op, const Reductions& backend) {
  const at::NoGradGuard no_grad;
  require_reducible(tensor.scalar_type(), op);
  const auto target = tensor.detach();
  const auto real = at::isComplexType(target.scalar_type())
                        ? at::view_as_real(target.is_conj() ? target.clone().resolve_conj() : target)
                        : target;
  const auto dtype = dtype_on_wire(real.scalar_type(), op, backend);
  const bool in_place = dtype == real.scalar_type() && is_plain(real) && is_plain(target);
  Wire wire;
  wire.tensor = in_place ? real.view({-1}) : at::empty({real.numel()}, real.options().dtype(dtype));
  if (!in_place) wire.tensor.view(real.sizes()).copy_(real);
  const double factor = op == ReduceOp::avg && !backend.of_means ? 1.0 / backend.ranks : 1.0;
  if (in_place && factor == 1.0) return wire;
  wire.finish = [target, in_place, factor, flat = wire.tensor] {
    const at::NoGradGuard guard;
    if (factor != 1.0) flat.mul_(factor);
    if (in_place) return;
    if (at::isComplexType(target.scalar_type())) {
      auto sizes = target.sizes().vec();
      sizes.push_back(2);
      target.copy_(at::view_as_complex(flat.view(sizes)));
    } else {
      target.copy_(flat.view(target.sizes()));
    }
  };
  return wire;
}

ReduceOp operation_on_wire(at::ScalarType dtype, ReduceOp op, const Reductions& backend) {
  if (op == ReduceOp::avg && !backend.of_means) return ReduceOp::sum;
  if (dtype == at::kBool && op == ReduceOp::sum) return ReduceOp::max;
  if (dtype == at::kBool && op == ReduceOp::product) return ReduceOp::min;
  return op;
}

Wire wire_of_bytes(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto target = tensor.detach();
  if (is_plain(target)) return {bytes_of(target), {}};
  const auto dense = target.resolve_conj().resolve_neg().contiguous();
  return {bytes_of(dense), [target, dense] {
            const at::NoGradGuard guard;
            target.copy_(dense);
          }};
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (!tensor.is_cpu())  // of the device's allocator, which is to hear of streams
    return at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false))
        .set_(tensor.storage(), tensor.storage_offset() * tensor.element_size(), {bytes}, {1});
  return at::from_blob(
      tensor.data_ptr(), {bytes}, [tensor](void*) {}, at::TensorOptions().dtype(at::kByte).device(tensor.device()));
}

at::Tensor bytes_of(std::string_view text) {
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

void keep_for_current_stream(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  tensor.record_stream(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

std::string amount_of(std::int64_t elements, at::ScalarType type) {
  std::string dtype = c10::toString(type);
  std::transform(dtype.begin(), dtype.end(), dtype.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::to_string(elements) + ' ' + dtype + (elements == 1 ? "" : "s");
}

}  // namespace ddp::comm
