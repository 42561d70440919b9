#pragma once
/// wire.hpp: what of a tensor travels between the ranks, and how the result comes back into it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/process_group.hpp"

namespace ddp::comm {

/// A dense, flat tensor that a backend can take. It shares memory with the user's tensor where that
/// is dense and of a dtype that the backend can reduce; else `finish` copies the result back.
struct Wire {
  at::Tensor tensor;
  std::function<void()> finish;  ///< once, after the collective; empty where nothing is to be done
};

/// "sum"
const char* name_of(ReduceOp op);

/// Errors: std::logic_error for a tensor that no collective takes: undefined, sparse, quantized, neither on the group's
/// device nor in memory.
void require_dense(const at::Tensor& tensor, at::Device device, std::string_view operation);
/// Errors: std::logic_error also where results cannot be written: elements that share memory.
void require_writable(const at::Tensor& tensor, at::Device device, std::string_view operation);

/// What the backend does of a reduction.
struct Reductions {
  int ranks = 1;
  bool of_half_types = false;  ///< without a rounding for each rank's part, or as the device's library has it
  bool of_int16 = false;
  bool of_means = false;  ///< avg of floating-point numbers, in the collective itself
};

/// Half types travel as float and int16 as int32 where the backend does not take them (and for avg, which is not to be
/// rounded twice, where the backend has none of its own), bool as uint8, complex as pairs. Errors: std::logic_error for
/// a dtype and operation that do not go together.
Wire wire_for_reduction(const at::Tensor& tensor, ReduceOp op, const Reductions& backend);
/// Nothing but the tensor's own bytes is needed, before and after.
bool reduces_in_place(const at::Tensor& tensor, ReduceOp op, const Reductions& backend);
/// The operation that the backend does on the wire: avg is a sum where it has none, of bools sum is max, product is
/// min.
ReduceOp operation_on_wire(at::ScalarType dtype, ReduceOp op, const Reductions& backend);

/// For moving bytes, whatever they mean.
Wire wire_of_bytes(const at::Tensor& tensor);
/// The bytes of a dense tensor, uint8 [nbytes], sharing its memory.
at::Tensor bytes_of(const at::Tensor& tensor);
at::Tensor bytes_of(std::string_view text);

/// The current stream works on `tensor`, of whatever stream its memory came from: the allocator is told. Nothing in the
/// host's memory.
void keep_for_current_stream(const at::Tensor& tensor);

/// "64 floats"
std::string amount_of(std::int64_t elements, at::ScalarType dtype);

}  // namespace ddp::comm
