// The collectives of ProcessGroup in which each rank has a part of its own. All move bytes: any dtype.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "comm/process_group_impl.hpp"

namespace ddp {

using comm::Operation;
using comm::Signature;

namespace {

using Plan = ProcessGroup::Impl::Plan;
using Pending = ProcessGroup::Impl::Pending;
using Signatures = ProcessGroup::Impl::Signatures;

at::Tensor dense_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

void require_nameable(const at::Tensor& tensor, const char* operation) {
  if (tensor.dim() > Signature::kMaxDimensions)
    throw std::logic_error(std::string(operation) + ": more than 14 dimensions");
}

// Tensors of the ranks' shapes, and what they arrive in: rows as long as the longest.
struct Parts {
  std::vector<at::Tensor> results;
  std::vector<at::Tensor> rows;
  std::int64_t longest = 0;

  Parts(const Signatures& signatures, const at::TensorOptions& options) {
    for (const auto& signature : signatures) {
      results.push_back(at::empty(signature.shape(), options));
      longest = std::max(longest, static_cast<std::int64_t>(results.back().nbytes()));
    }
  }
  void make_rows() { rows = comm::buffers(static_cast<int>(results.size()), longest, results.at(0).device()); }
  std::vector<at::Tensor> take() {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto bytes = comm::bytes_of(results[i]);
      bytes.copy_(rows[i].narrow(0, 0, bytes.numel()));
    }
    for (const auto& result : results) comm::keep_for_current_stream(result);
    rows.clear();
    return results;
  }
};

std::int64_t longest_of(const Signatures& signatures, const at::Tensor& like) {
  return Parts(signatures, like.options().device(at::kMeta)).longest;
}

}  // namespace

Work ProcessGroup::all_gather_async(std::vector<at::Tensor>& output, const at::Tensor& tensor,
                                    const CallOptions& options) {
  comm::require_dense(tensor, device(), "all_gather");
  require_nameable(tensor, "all_gather");
  const auto dense = dense_of(tensor);
  const auto parts = std::make_shared<std::optional<Parts>>();
  Plan plan{Signature(Operation::all_gather, tensor)};
  plan.signature.first_differs = 1;
  const auto way = impl_->route(tensor);
  plan.stream = way.stream;
  plan.begin = [backend = way.backend, parts, dense](const Signatures& signatures) {
    parts->emplace(signatures, dense.options());
    if ((*parts)->longest == 0) return Pending();
    (*parts)->make_rows();
    return comm::gather_all(*backend, (*parts)->rows, comm::padded(comm::bytes_of(dense), (*parts)->longest));
  };
  plan.finish = [parts, &output] { output = (*parts)->take(); };
  plan.alone = [dense, &output] { output = {dense.clone()}; };
  return impl_->start(std::move(plan), options);
}

Work ProcessGroup::gather_async(std::vector<at::Tensor>& output, const at::Tensor& tensor, int root,
                                const CallOptions& options) {
  comm::require_dense(tensor, device(), "gather");
  comm::require_root(root, size(), "gather");
  require_nameable(tensor, "gather");
  const auto dense = dense_of(tensor);
  const auto parts = std::make_shared<std::optional<Parts>>();
  const bool is_root = rank() == root;
  Plan plan{Signature(Operation::gather, tensor)};
  plan.signature.first_differs = 1;
  plan.signature.root = root;
  const auto way = impl_->route(tensor);
  plan.stream = way.stream;
  plan.begin = [backend = way.backend, parts, dense, root, is_root](const Signatures& signatures) {
    const auto longest = longest_of(signatures, dense);
    if (is_root) parts->emplace(signatures, dense.options());
    if (longest == 0) return Pending();
    std::vector<std::vector<at::Tensor>> rows;
    if (is_root) {
      (*parts)->make_rows();
      rows.push_back((*parts)->rows);
    }
    std::vector<at::Tensor> input{comm::padded(comm::bytes_of(dense), longest)};
    c10d::GatherOptions details;
    details.rootRank = root;
    return backend->gather(rows, input, details);
  };
  plan.finish = [parts, &output, is_root] { output = is_root ? (*parts)->take() : std::vector<at::Tensor>(); };
  plan.alone = [dense, &output] { output = {dense.clone()}; };
  return impl_->start(std::move(plan), options);
}

Work ProcessGroup::scatter_async(at::Tensor& output, const std::vector<at::Tensor>& input, int root,
                                 const CallOptions& options) {
  comm::require_writable(output, device(), "scatter");
  comm::require_root(root, size(), "scatter");
  std::vector<at::Tensor> rows;
  if (rank() == root) {
    if (input.size() != static_cast<std::size_t>(size()))
      throw std::logic_error("scatter: the root needs one tensor for each of the " + std::to_string(size()) +
                             " ranks, not " + std::to_string(input.size()));
    for (const auto& tensor : input) {
      comm::require_dense(tensor, device(), "scatter");
      if (tensor.sizes() != output.sizes() || tensor.scalar_type() != output.scalar_type() ||
          tensor.device() != output.device())
        throw std::logic_error("scatter: the inputs must have the output's dtype, sizes and device");
      rows.push_back(comm::bytes_of(dense_of(tensor)));
    }
  }
  const auto dense = at::empty(output.sizes(), output.options().memory_format(at::MemoryFormat::Contiguous));
  Plan plan{Signature(Operation::scatter, output)};
  plan.signature.root = root;
  const auto way = impl_->route(output);
  plan.stream = way.stream;
  plan.begin = [backend = way.backend, rows, bytes = comm::bytes_of(dense), root](const Signatures&) {
    if (bytes.numel() == 0) return Pending();
    std::vector<at::Tensor> outputs{bytes};
    std::vector<std::vector<at::Tensor>> inputs;
    if (!rows.empty()) inputs.push_back(rows);
    c10d::ScatterOptions details;
    details.rootRank = root;
    return backend->scatter(outputs, inputs, details);
  };
  plan.finish = [target = output.detach(), dense] {
    const at::NoGradGuard no_grad;
    target.copy_(dense);
  };
  plan.alone = [target = output.detach(), first = input] {
    const at::NoGradGuard no_grad;
    target.copy_(first[0]);
  };
  return impl_->start(std::move(plan), options);
}

namespace {

// Rows for each rank: the given ones, else equal shares.
std::vector<std::int64_t> rows_per_rank(const std::vector<std::int64_t>& given, const at::Tensor& tensor, int ranks,
                                        const std::string& which) {
  const auto count = static_cast<std::size_t>(ranks);
  if (tensor.dim() == 0) throw std::logic_error("all_to_all: the " + which + " needs a first dimension");
  if (given.empty()) {
    if (tensor.size(0) % ranks != 0)
      throw std::logic_error("all_to_all: the " + which + "'s " + std::to_string(tensor.size(0)) +
                             " rows do not divide among " + std::to_string(ranks) + " ranks; give splits");
    return std::vector<std::int64_t>(count, tensor.size(0) / ranks);
  }
  const bool sensible = given.size() == count && *std::min_element(given.begin(), given.end()) >= 0 &&
                        std::accumulate(given.begin(), given.end(), std::int64_t{0}) == tensor.size(0);
  if (!sensible)
    throw std::logic_error("all_to_all: the " + which + " splits must be one number a rank, together " +
                           std::to_string(tensor.size(0)) + " rows");
  return given;
}

struct Exchange {
  std::vector<std::int64_t> sent, taken;  // rows for and from each rank
  at::Tensor input, output;               // dense
  std::vector<at::Tensor> all_rows;       // every rank's `sent` and `taken`, as bytes

  std::vector<std::int64_t> bytes(std::vector<std::int64_t> rows, const at::Tensor& tensor) const {
    const auto row = tensor.size(0) == 0 ? 0 : static_cast<std::int64_t>(tensor.nbytes()) / tensor.size(0);
    for (auto& count : rows) count *= row;
    return rows;
  }
  std::int64_t rows_sent(int from, int to) const {
    return static_cast<const std::int64_t*>(all_rows[static_cast<std::size_t>(from)].const_data_ptr())[to];
  }
  std::int64_t rows_taken(int at, int from) const {
    return static_cast<const std::int64_t*>(all_rows[static_cast<std::size_t>(at)].const_data_ptr())[size() + from];
  }
  int size() const { return static_cast<int>(sent.size()); }
  // On all ranks: they see the same numbers.
  bool is_empty() const {
    std::int64_t rows = 0;
    for (int from = 0; from < size(); ++from)
      for (int to = 0; to < size(); ++to) rows += rows_sent(from, to);
    return rows == 0 || c10::multiply_integers(input.sizes().slice(1)) == 0;
  }
  at::Tensor own_rows() const {
    auto both = sent;
    both.insert(both.end(), taken.begin(), taken.end());
    return comm::bytes_of(std::string_view(reinterpret_cast<const char*>(both.data()), both.size() * sizeof both[0]));
  }
};

void require_fitting_splits(const Exchange& exchange, const std::vector<int>& ranks, Origin origin,
                            const std::string& part) {
  for (int from = 0; from < exchange.size(); ++from) {
    for (int to = 0; to < exchange.size(); ++to) {
      const auto sent = exchange.rows_sent(from, to), taken = exchange.rows_taken(to, from);
      if (sent == taken) continue;
      throw CallMismatchError(origin, part,
                              "rank " + std::to_string(ranks[static_cast<std::size_t>(from)]) + " sends " +
                                  std::to_string(sent) + " rows to rank " +
                                  std::to_string(ranks[static_cast<std::size_t>(to)]) + ", which takes " +
                                  std::to_string(taken),
                              "the splits of sender and receiver must agree; nothing was sent");
    }
  }
}

std::shared_ptr<Exchange> exchange_of(const at::Tensor& output, const at::Tensor& input, const Splits& splits,
                                      int ranks) {
  auto exchange = std::make_shared<Exchange>();
  exchange->sent = rows_per_rank(splits.input, input, ranks, "input");
  exchange->taken = rows_per_rank(splits.output, output, ranks, "output");
  if (input.scalar_type() != output.scalar_type() || input.device() != output.device() ||
      input.sizes().slice(1) != output.sizes().slice(1))
    throw std::logic_error(
        "all_to_all: input and output must agree in dtype, device and in all dimensions but the first");
  exchange->input = dense_of(input);
  exchange->output = at::empty(output.sizes(), output.options().memory_format(at::MemoryFormat::Contiguous));
  return exchange;
}

Pending begin_exchange(c10d::Backend& backend, const Exchange& exchange) {
  if (exchange.is_empty()) return {};
  auto sent = exchange.bytes(exchange.sent, exchange.input);
  auto taken = exchange.bytes(exchange.taken, exchange.output);
  auto from = comm::bytes_of(exchange.input), to = comm::bytes_of(exchange.output);
  return backend.alltoall_base(to, from, taken, sent);
}

}  // namespace

Work ProcessGroup::all_to_all_async(at::Tensor& output, const at::Tensor& input, const Splits& splits,
                                    const CallOptions& options) {
  comm::require_writable(output, device(), "all_to_all");
  comm::require_dense(input, device(), "all_to_all");
  require_nameable(input, "all_to_all");
  const auto exchange = exchange_of(output, input, splits, size());
  Plan plan{Signature(Operation::all_to_all, input)};
  plan.signature.first_differs = 1;
  plan.prepare = [backend = impl_->backend, exchange](const Signatures&) {
    exchange->all_rows = comm::buffers(exchange->size(), exchange->own_rows().numel());
    return comm::gather_all(*backend, exchange->all_rows, exchange->own_rows());
  };
  const auto way = impl_->route(output);
  plan.stream = way.stream;
  plan.begin = [backend = way.backend, exchange, ranks = impl_->session->ranks(), origin = origin(),
                own = impl_->environment.rank](const Signatures& signatures) {
    const auto part = "all_to_all #" + std::to_string(signatures[static_cast<std::size_t>(own)].number);
    require_fitting_splits(*exchange, ranks, origin, part);
    return begin_exchange(*backend, *exchange);
  };
  plan.finish = [exchange, target = output.detach()] {
    const at::NoGradGuard no_grad;
    target.copy_(exchange->output);
  };
  plan.alone = [exchange, target = output.detach()] {
    const at::NoGradGuard no_grad;
    target.copy_(exchange->input);
  };
  return impl_->start(std::move(plan), options);
}

}  // namespace ddp
