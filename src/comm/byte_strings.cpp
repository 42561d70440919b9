// The collectives of ProcessGroup on byte strings. Their lengths travel in the signatures.
#include <algorithm>
#include <stdexcept>

#include "comm/process_group_impl.hpp"

namespace ddp {

using comm::Operation;
using comm::Signature;

namespace {

using Plan = ProcessGroup::Impl::Plan;
using Pending = ProcessGroup::Impl::Pending;
using Signatures = ProcessGroup::Impl::Signatures;

Plan plan_of(Operation operation, std::size_t length) { return {Signature(operation, length)}; }

struct Strings {
  std::vector<std::int64_t> lengths;
  std::vector<at::Tensor> rows;

  std::int64_t set_lengths(const Signatures& signatures) {
    for (const auto& signature : signatures) lengths.push_back(signature.length());
    return *std::max_element(lengths.begin(), lengths.end());
  }
  std::vector<std::string> take() const {
    std::vector<std::string> strings(lengths.size());
    for (std::size_t i = 0; i < rows.size(); ++i) strings[i] = comm::text_in(rows[i], lengths[i]);
    return strings;
  }
};

}  // namespace

Work ProcessGroup::all_gather_bytes_async(std::vector<std::string>& output, std::string_view bytes,
                                          const CallOptions& options) {
  auto plan = plan_of(Operation::all_gather_bytes, bytes.size());
  const auto strings = std::make_shared<Strings>();
  plan.begin = [backend = impl_->backend, strings, own = comm::bytes_of(bytes)](const Signatures& signatures) {
    const auto longest = strings->set_lengths(signatures);
    if (longest == 0) return Pending();
    strings->rows = comm::buffers(static_cast<int>(signatures.size()), longest);
    return comm::gather_all(*backend, strings->rows, comm::padded(own, longest));
  };
  plan.finish = [strings, &output] { output = strings->take(); };
  plan.alone = [own = std::string(bytes), &output] { output = {own}; };
  return impl_->start(std::move(plan), options);
}

std::string ProcessGroup::broadcast_bytes(std::string bytes, int root, const CallOptions& options) {
  comm::require_root(root, size(), "broadcast_bytes");
  auto plan = plan_of(Operation::broadcast_bytes, rank() == root ? bytes.size() : 0);
  plan.signature.root = root;
  const auto content = std::make_shared<at::Tensor>();
  if (rank() == root) *content = comm::bytes_of(bytes);
  plan.begin = [backend = impl_->backend, content, root](const Signatures& signatures) {
    const auto length = signatures[static_cast<std::size_t>(root)].length();
    if (!content->defined()) *content = at::empty({length}, at::kByte);
    if (length == 0) return Pending();
    c10d::BroadcastOptions details;
    details.rootRank = root;
    std::vector<at::Tensor> tensors{*content};
    return backend->broadcast(tensors, details);
  };
  impl_->run_to_end(std::move(plan), options);
  return rank() == root ? bytes : comm::text_in(*content, content->numel());
}

std::vector<std::string> ProcessGroup::gather_bytes(std::string_view bytes, int root, const CallOptions& options) {
  comm::require_root(root, size(), "gather_bytes");
  auto plan = plan_of(Operation::gather_bytes, bytes.size());
  plan.signature.root = root;
  const auto strings = std::make_shared<Strings>();
  const bool is_root = rank() == root;
  plan.begin = [backend = impl_->backend, strings, root, is_root,
                own = comm::bytes_of(bytes)](const Signatures& signatures) {
    const auto longest = strings->set_lengths(signatures);
    if (longest == 0) return Pending();
    std::vector<std::vector<at::Tensor>> rows;
    if (is_root) {
      strings->rows = comm::buffers(static_cast<int>(signatures.size()), longest);
      rows.push_back(strings->rows);
    }
    c10d::GatherOptions details;
    details.rootRank = root;
    std::vector<at::Tensor> input{comm::padded(own, longest)};
    return backend->gather(rows, input, details);
  };
  plan.alone = [strings, own = comm::bytes_of(bytes)] {
    strings->lengths = {own.numel()};
    strings->rows = {own};
  };
  impl_->run_to_end(std::move(plan), options);
  return is_root ? strings->take() : std::vector<std::string>();
}

std::string ProcessGroup::scatter_bytes(const std::vector<std::string>& parts, int root, const CallOptions& options) {
  comm::require_root(root, size(), "scatter_bytes");
  std::int64_t longest = 0;
  if (rank() == root) {
    if (parts.size() != static_cast<std::size_t>(size()))
      throw std::logic_error("scatter_bytes: the root needs one string for each of the " + std::to_string(size()) +
                             " ranks, not " + std::to_string(parts.size()));
    for (const auto& part : parts) longest = std::max(longest, static_cast<std::int64_t>(part.size()));
  }
  // Each row: the string's length, the string, zeros up to the longest; the signature tells that length.
  const auto row_of = [&](const std::string& part) {
    const auto length = static_cast<std::int64_t>(part.size());
    const auto row = std::string(reinterpret_cast<const char*>(&length), sizeof length) + part;
    return comm::padded(comm::bytes_of(row), static_cast<std::int64_t>(sizeof length) + longest);
  };
  std::vector<std::vector<at::Tensor>> rows;
  if (rank() == root) {
    rows.emplace_back();
    for (const auto& part : parts) rows[0].push_back(row_of(part));
  }
  auto plan = plan_of(Operation::scatter_bytes, static_cast<std::size_t>(longest));
  plan.signature.root = root;
  const auto received = std::make_shared<at::Tensor>();
  plan.begin = [backend = impl_->backend, received, rows, root](const Signatures& signatures) mutable {
    const auto length = signatures[static_cast<std::size_t>(root)].length();
    *received = at::empty({static_cast<std::int64_t>(sizeof(std::int64_t)) + length}, at::kByte);
    c10d::ScatterOptions details;
    details.rootRank = root;
    std::vector<at::Tensor> outputs{*received};
    return backend->scatter(outputs, rows, details);
  };
  plan.alone = [received, rows] { *received = rows[0][0]; };
  impl_->run_to_end(std::move(plan), options);
  const auto length = *static_cast<const std::int64_t*>(received->const_data_ptr());
  const auto text = comm::text_in(*received, static_cast<std::int64_t>(sizeof length) + length);
  return text.substr(sizeof length);
}

}  // namespace ddp
