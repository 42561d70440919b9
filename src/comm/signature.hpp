#pragma once
/// signature.hpp: what the ranks must agree on before a call's tensors move. A backend that gets a
/// tensor of another size ends the process, so the ranks compare these first, in a fixed size.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shm/board.hpp"
#include "ddp/process_group.hpp"

namespace ddp::comm {

enum class Operation : std::int64_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  barrier,
  monitored_barrier,
  rank0_section,
  broadcast_bytes,
  all_gather_bytes,
  gather_bytes,
  scatter_bytes,
  message,
  bytes_message,
};

const char* name_of(Operation operation);

/// One rank's call. Plain numbers, so that it travels as it lies in memory.
struct Signature {
  static constexpr std::int64_t kNone = -1;
  static constexpr std::int64_t kMaxDimensions = 14;

  std::int64_t operation = kNone;
  std::int64_t number = kNone;     ///< for texts; not compared
  std::int64_t reduce_op = kNone;  ///< a ReduceOp
  std::int64_t root = kNone;       ///< rank in the group
  std::int64_t dtype = kNone;      ///< kNone: no tensor
  std::int64_t device = kNone;     ///< the type of an accelerator on which the tensor is; kNone: in memory
  std::int64_t dimensions = 0;
  std::int64_t first_differs = 0;  ///< 1: the first dimension may differ between the ranks
  std::array<std::int64_t, kMaxDimensions> sizes{};

  explicit Signature(Operation called) : operation(static_cast<std::int64_t>(called)) {}
  Signature() = default;
  /// Of a call on `tensor`. Beyond 14 dimensions the last ones are multiplied together.
  Signature(Operation called, const at::Tensor& tensor);
  /// Of a call on a string of this length, which may differ between the ranks.
  Signature(Operation called, std::size_t length);

  Operation called() const { return static_cast<Operation>(operation); }
  bool agrees_with(const Signature& other) const;
  std::vector<std::int64_t> shape() const { return {sizes.begin(), sizes.begin() + dimensions}; }
  std::int64_t length() const { return sizes[0]; }  ///< of a string
  /// `64 floats`, `5 bytes`; empty where nothing is moved
  std::string amount() const;
  /// `all_reduce #4 (sum of Float [64])`; `ranks` are the group's in the world.
  std::string text(const std::vector<int>& ranks) const;
};

/// Errors: CallMismatchError with each different call and the ranks that made it. `part` names this
/// rank's call; `all` is in the order of `ranks`.
void require_agreement(const std::vector<Signature>& all, const std::vector<int>& ranks, Origin origin,
                       std::string_view part);

/// "0, 2, 3"
std::string listed(const std::vector<int>& ranks);

/// As it stands on a call over shared memory, and back.
shm::Label label_of(const Signature& signature);
std::vector<Signature> signatures_in(const std::vector<shm::Label>& labels);

/// The bytes of a plain value, in memory of their own: an abandoned transfer still reads and writes them.
at::Tensor copied_bytes(const Signature& signature);
Signature signature_in(const at::Tensor& bytes);

}  // namespace ddp::comm
