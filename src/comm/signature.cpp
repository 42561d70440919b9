#include "comm/signature.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>

#include "comm/wire.hpp"
#include "ddp/error.hpp"

namespace ddp::comm {
namespace {

static_assert(std::is_trivially_copyable_v<Signature>);

constexpr std::string_view kRemedy =
    "make the same calls on all ranks, in one order; nothing was sent, and the group can go on";

bool holds_bytes(std::int64_t operation) {
  switch (static_cast<Operation>(operation)) {
    case Operation::broadcast_bytes:
    case Operation::all_gather_bytes:
    case Operation::gather_bytes:
    case Operation::scatter_bytes:
    case Operation::bytes_message:
      return true;
    default:
      return false;
  }
}

}  // namespace

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::reduce:
      return "reduce";
    case Operation::all_gather:
      return "all_gather";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::barrier:
      return "barrier";
    case Operation::monitored_barrier:
      return "monitored_barrier";
    case Operation::rank0_section:
      return "rank0_section";
    case Operation::broadcast_bytes:
      return "broadcast_bytes";
    case Operation::all_gather_bytes:
      return "all_gather_bytes";
    case Operation::gather_bytes:
      return "gather_bytes";
    case Operation::scatter_bytes:
      return "scatter_bytes";
    case Operation::message:
      return "message";
    case Operation::bytes_message:
      return "message of bytes";
  }
  return "unknown call";
}

Signature::Signature(Operation called, const at::Tensor& tensor) : Signature(called) {
  dtype = static_cast<std::int64_t>(tensor.scalar_type());
  if (!tensor.is_cpu()) device = static_cast<std::int64_t>(tensor.device().type());
  dimensions = std::min(tensor.dim(), kMaxDimensions);
  sizes.fill(1);
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    sizes[static_cast<std::size_t>(std::min(i, kMaxDimensions - 1))] *= tensor.size(i);
}

Signature::Signature(Operation called, std::size_t length) : Signature(called) {
  dimensions = 1;
  first_differs = 1;
  sizes[0] = static_cast<std::int64_t>(length);
}

bool Signature::agrees_with(const Signature& other) const {
  const auto compared = [](Signature signature) {
    signature.number = 0;
    if (signature.first_differs != 0) signature.sizes[0] = 0;
    return signature;
  };
  const auto mine = compared(*this), theirs = compared(other);
  return std::memcmp(&mine, &theirs, sizeof mine) == 0;
}

std::string Signature::amount() const {
  if (holds_bytes(operation)) return std::to_string(length()) + " bytes";
  if (dtype == kNone) return {};
  const auto elements =
      std::accumulate(sizes.begin(), sizes.begin() + dimensions, std::int64_t{1}, std::multiplies<std::int64_t>());
  return amount_of(elements, static_cast<at::ScalarType>(dtype));
}

std::string Signature::text(const std::vector<int>& ranks) const {
  std::string text = name_of(static_cast<Operation>(operation));
  if (number > 0) text += " #" + std::to_string(number);
  std::string details;
  if (reduce_op != kNone) details += name_of(static_cast<ReduceOp>(reduce_op)) + std::string(" of ");
  if (dtype != kNone) {
    details += c10::toString(static_cast<at::ScalarType>(dtype)) + std::string(" [");
    for (std::int64_t i = 0; i < dimensions; ++i)
      details += (i == 0 ? "" : ", ") + std::to_string(sizes[static_cast<std::size_t>(i)]);
    details += ']';
    if (device != kNone) details += " on " + c10::DeviceTypeName(static_cast<at::DeviceType>(device), true);
  } else if (holds_bytes(operation)) {
    details += std::to_string(length()) + " bytes";
  }
  if (root != kNone)
    details += (details.empty() ? "root " : ", root ") + std::to_string(ranks[static_cast<std::size_t>(root)]);
  return details.empty() ? text : text + " (" + details + ')';
}

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

void require_agreement(const std::vector<Signature>& all, const std::vector<int>& ranks, Origin origin,
                       std::string_view part) {
  struct Camp {
    Signature call;
    std::vector<int> ranks;
  };
  std::vector<Camp> camps;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto found =
        std::find_if(camps.begin(), camps.end(), [&](const Camp& camp) { return camp.call.agrees_with(all[i]); });
    if (found == camps.end())
      camps.push_back({all[i], {ranks[i]}});
    else
      found->ranks.push_back(ranks[i]);
  }
  if (camps.size() == 1) return;
  std::string text = "the ranks make different calls";
  for (const auto& camp : camps)
    text += (camp.ranks.size() == 1 ? "\n  rank " : "\n  ranks ") + listed(camp.ranks) + ": " + camp.call.text(ranks);
  throw CallMismatchError(origin, part, text, kRemedy);
}

// What is compared comes first: the short words, then the sizes; the number, and a first size that may differ, follow.
shm::Label label_of(const Signature& signature) {
  shm::Label label;
  const auto put = [&](auto value) {
    std::memcpy(label.text.data() + label.bytes, &value, sizeof value);
    label.bytes = static_cast<std::uint16_t>(label.bytes + sizeof value);
  };
  put(static_cast<std::int16_t>(signature.root));
  for (const auto word : {signature.operation, signature.reduce_op, signature.dtype, signature.device,
                          signature.dimensions, signature.first_differs})
    put(static_cast<std::int8_t>(word));
  for (auto i = signature.first_differs; i < signature.dimensions; ++i)
    put(signature.sizes[static_cast<std::size_t>(i)]);
  label.compared = label.bytes;
  put(signature.number);
  if (signature.first_differs != 0) put(signature.sizes[0]);
  return label;
}

namespace {

Signature signature_in(const shm::Label& label) {
  Signature signature;
  std::size_t read = 0;
  const auto take = [&](auto& value) {
    std::memcpy(&value, label.text.data() + read, sizeof value);
    read += sizeof value;
  };
  std::int16_t root = 0;
  take(root);
  signature.root = root;
  for (auto* const word : {&signature.operation, &signature.reduce_op, &signature.dtype, &signature.device,
                           &signature.dimensions, &signature.first_differs}) {
    std::int8_t value = 0;
    take(value);
    *word = value;
  }
  for (auto i = signature.first_differs; i < signature.dimensions; ++i)
    take(signature.sizes[static_cast<std::size_t>(i)]);
  take(signature.number);
  if (signature.first_differs != 0) take(signature.sizes[0]);
  return signature;
}

}  // namespace

std::vector<Signature> signatures_in(const std::vector<shm::Label>& labels) {
  std::vector<Signature> signatures;
  for (const auto& label : labels) signatures.push_back(signature_in(label));
  return signatures;
}

at::Tensor copied_bytes(const Signature& signature) {
  return bytes_of(std::string_view(reinterpret_cast<const char*>(&signature), sizeof signature));
}

Signature signature_in(const at::Tensor& bytes) {
  Signature signature;
  std::memcpy(&signature, bytes.const_data_ptr(), sizeof signature);
  return signature;
}

}  // namespace ddp::comm
