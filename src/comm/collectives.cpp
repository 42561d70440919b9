// The collectives of ProcessGroup over a c10d::Backend.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "comm/process_group_impl.hpp"
#include "comm/text_of.hpp"
#include "ddp/log.hpp"

namespace ddp {

using comm::Breakage;
using comm::Wire;

namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    default:
      return c10d::ReduceOp::SUM;
  }
}

void require_root(int root, int size, const char* operation) {
  if (root >= 0 && root < size) return;
  throw std::logic_error(std::string(operation) + ": root " + std::to_string(root) + " is no rank of " +
                         std::to_string(size));
}

// What ranks must agree on before their tensors are gathered: dimensions, dtype, sizes.
constexpr std::int64_t kMaxDimensions = 14;
constexpr std::int64_t kShapeFields = kMaxDimensions + 2;
using Shape = std::array<std::int64_t, kShapeFields>;

Shape shape_of(const at::Tensor& tensor) {
  if (tensor.dim() > kMaxDimensions) throw std::logic_error("all_gather: more than 14 dimensions");
  Shape shape{};
  shape[0] = tensor.dim();
  shape[1] = static_cast<std::int64_t>(tensor.scalar_type());
  for (std::int64_t i = 0; i < tensor.dim(); ++i) shape[static_cast<std::size_t>(i + 2)] = tensor.size(i);
  return shape;
}

std::string text_of_shape(const Shape& shape) {
  std::string text = c10::toString(static_cast<at::ScalarType>(shape[1]));
  text += " [";
  for (std::int64_t i = 0; i < shape[0]; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[static_cast<std::size_t>(i + 2)]);
  return text + ']';
}

// What keeps tensors of these shapes from being gathered; empty if nothing does. Every rank sees the same.
std::string mismatch_of(const std::vector<Shape>& shapes) {
  const auto without_first = [](Shape shape) {
    if (shape[0] > 0) shape[2] = 0;
    return shape;
  };
  for (std::size_t rank = 1; rank < shapes.size(); ++rank) {
    if (without_first(shapes[rank]) == without_first(shapes[0])) continue;
    return "only the first dimension may differ between the ranks: rank 0 has " + text_of_shape(shapes[0]) + ", rank " +
           std::to_string(rank) + " has " + text_of_shape(shapes[rank]);
  }
  return {};
}

std::vector<std::int64_t> sizes_of(const Shape& shape) { return {shape.begin() + 2, shape.begin() + 2 + shape[0]}; }

std::vector<at::Tensor> buffers(int count, std::int64_t bytes) {
  auto memory = at::empty({count, bytes}, at::kByte);
  std::vector<at::Tensor> parts;
  for (int i = 0; i < count; ++i) parts.push_back(memory.select(0, i));
  return parts;
}

at::Tensor padded(const at::Tensor& bytes, std::int64_t length) {
  if (bytes.numel() == length) return bytes;
  auto result = at::zeros({length}, at::kByte);
  result.narrow(0, 0, bytes.numel()).copy_(bytes);
  return result;
}

// Memory of its own: an abandoned transfer still reads and writes it.
template <class T>
at::Tensor copied_bytes(const T& value) {
  return comm::bytes_of(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
}

template <class T>
T value_in(const at::Tensor& bytes) {
  T value;
  std::memcpy(&value, bytes.const_data_ptr(), sizeof value);
  return value;
}

template <class T>
std::vector<T> values_in(const std::vector<at::Tensor>& parts) {
  std::vector<T> values;
  for (const auto& part : parts) values.push_back(value_in<T>(part));
  return values;
}

std::string text_in(const at::Tensor& bytes, std::int64_t length) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(length)};
}

}  // namespace

comm::Call ProcessGroup::Impl::enter(const char* operation, const std::string& amount, const CallOptions& options) {
  if (closed) throw std::logic_error(std::string(operation) + ": the process group has been shut down");
  const auto next = session->record().next(operation, amount, options.label);
  if (const auto obstacle = session->health().obstacle(next.number)) session->break_and_raise(*obstacle, next.name());
  auto call = session->record().enter(operation, amount, options.label);
  log::detail(log::Subsystem::coll, "{}", call.description());
  return call;
}

std::shared_ptr<Work::State> ProcessGroup::Impl::launch(const comm::Call& call, const CallOptions& options,
                                                        const std::function<Pending()>& begin, bool is_last) {
  auto state = std::make_shared<Work::State>(session, call, options.timeout.value_or(timeout), is_last);
  try {
    const auto pending = begin();
    pending->getFuture()->addCallback([state](c10::ivalue::Future& future) {
      state->complete(future.hasError() ? future.exception_ptr() : nullptr);
    });
  } catch (const std::exception& error) {
    state->complete(std::current_exception());
    session->break_and_raise({Breakage::Kind::failed_here, environment.rank, comm::text_of(error)}, call.name());
  }
  return state;
}

void ProcessGroup::Impl::transfer_first(const comm::Call& call, const CallOptions& options,
                                        const std::function<Pending()>& begin) {
  launch(call, options, begin, false)->wait();
}

Work ProcessGroup::Impl::done(const comm::Call& call) {
  session->record().complete(call);
  return {};
}

Work ProcessGroup::Impl::start(const char* operation, const std::string& amount, const CallOptions& options, Wire wire,
                               const std::function<Pending(std::vector<at::Tensor>&)>& begin) {
  const std::lock_guard lock(order);
  const auto call = enter(operation, amount, options);
  if (is_alone() || (wire.tensor.defined() && wire.tensor.numel() == 0)) return done(call);
  std::vector<at::Tensor> tensors{wire.tensor};
  auto state = launch(call, options, [&] { return begin(tensors); });
  state->set_finish([tensors, finish = std::move(wire.finish)] {
    if (finish) finish();
  });
  return Work(std::move(state));
}

Work ProcessGroup::all_reduce_async(at::Tensor& tensor, ReduceOp op, const CallOptions& options) {
  comm::require_writable(tensor, device(), "all_reduce");
  auto wire = comm::wire_for_reduction(tensor, op, size());
  c10d::AllreduceOptions details;
  details.reduceOp = to_c10d(comm::operation_on_wire(tensor.scalar_type(), op));
  return impl_->start("all_reduce", comm::amount_of(tensor), options, std::move(wire),
                      [&](auto& tensors) { return impl_->backend->allreduce(tensors, details); });
}

Work ProcessGroup::broadcast_async(at::Tensor& tensor, int root, const CallOptions& options) {
  comm::require_writable(tensor, device(), "broadcast");
  require_root(root, size(), "broadcast");
  c10d::BroadcastOptions details;
  details.rootRank = root;
  return impl_->start("broadcast", comm::amount_of(tensor), options, comm::wire_of_bytes(tensor),
                      [&](auto& tensors) { return impl_->backend->broadcast(tensors, details); });
}

Work ProcessGroup::barrier_async(const CallOptions& options) {
  return impl_->start("barrier", {}, options, {}, [&](auto&) { return impl_->backend->barrier(); });
}

Work ProcessGroup::all_gather_async(std::vector<at::Tensor>& output, const at::Tensor& tensor,
                                    const CallOptions& options) {
  comm::require_dense(tensor, device(), "all_gather");
  return impl_->all_gather(output, tensor, options);
}

Work ProcessGroup::all_gather_bytes_async(std::vector<std::string>& output, std::string_view bytes,
                                          const CallOptions& options) {
  return impl_->all_gather_bytes(output, bytes, options);
}

std::string ProcessGroup::broadcast_bytes(std::string bytes, int root, const CallOptions& options) {
  require_root(root, size(), "broadcast_bytes");
  return impl_->broadcast_bytes(std::move(bytes), root, options);
}

ProcessGroup::Impl::Pending ProcessGroup::Impl::gather(std::vector<at::Tensor>& outputs, at::Tensor input) {
  std::vector<std::vector<at::Tensor>> lists{outputs};
  std::vector<at::Tensor> inputs{std::move(input)};
  return backend->allgather(lists, inputs);
}

Work ProcessGroup::Impl::all_gather(std::vector<at::Tensor>& output, const at::Tensor& tensor,
                                    const CallOptions& options) {
  const auto own = shape_of(tensor);
  const auto dense = tensor.detach().resolve_conj().resolve_neg().contiguous();
  const std::lock_guard lock(order);
  const auto call = enter("all_gather", comm::amount_of(tensor), options);
  if (is_alone()) {
    output = {dense.clone()};
    return done(call);
  }
  auto received = buffers(size(), sizeof own);
  transfer_first(call, options, [&] { return gather(received, copied_bytes(own)); });
  const auto shapes = values_in<Shape>(received);
  if (const auto mismatch = mismatch_of(shapes); !mismatch.empty()) {
    done(call);
    throw std::logic_error("all_gather: " + mismatch);
  }
  std::vector<at::Tensor> results;
  std::int64_t longest = 0;
  for (const auto& shape : shapes) {
    results.push_back(at::empty(sizes_of(shape), dense.options()));
    longest = std::max(longest, static_cast<std::int64_t>(results.back().nbytes()));
  }
  if (longest == 0) {
    output = std::move(results);
    return done(call);
  }
  auto parts = buffers(size(), longest);
  auto state = launch(call, options, [&] { return gather(parts, padded(comm::bytes_of(dense), longest)); });
  state->set_finish([&output, results, parts] {
    for (std::size_t i = 0; i < results.size(); ++i) {
      auto bytes = comm::bytes_of(results[i]);
      bytes.copy_(parts[i].narrow(0, 0, bytes.numel()));
    }
    output = results;
  });
  return Work(std::move(state));
}

Work ProcessGroup::Impl::all_gather_bytes(std::vector<std::string>& output, std::string_view bytes,
                                          const CallOptions& options) {
  const auto own = comm::bytes_of(bytes);
  const std::lock_guard lock(order);
  const auto call = enter("all_gather_bytes", std::to_string(bytes.size()) + " bytes", options);
  if (is_alone()) {
    output = {std::string(bytes)};
    return done(call);
  }
  auto received = buffers(size(), sizeof(std::int64_t));
  transfer_first(call, options, [&] { return gather(received, copied_bytes(own.numel())); });
  const auto lengths = values_in<std::int64_t>(received);
  const auto longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) {
    output.assign(lengths.size(), {});
    return done(call);
  }
  auto parts = buffers(size(), longest);
  auto state = launch(call, options, [&] { return gather(parts, padded(own, longest)); });
  state->set_finish([&output, lengths, parts] {
    output.clear();
    for (std::size_t i = 0; i < parts.size(); ++i) output.push_back(text_in(parts[i], lengths[i]));
  });
  return Work(std::move(state));
}

std::string ProcessGroup::Impl::broadcast_bytes(std::string bytes, int root, const CallOptions& options) {
  const std::lock_guard lock(order);
  const auto call = enter("broadcast_bytes", {}, options);
  c10d::BroadcastOptions details;
  details.rootRank = root;
  if (!is_alone()) {
    std::vector<at::Tensor> lengths{copied_bytes(static_cast<std::int64_t>(bytes.size()))};
    transfer_first(call, options, [&] { return backend->broadcast(lengths, details); });
    const auto length = value_in<std::int64_t>(lengths[0]);
    if (length > 0) {
      bytes.resize(static_cast<std::size_t>(length));
      std::vector<at::Tensor> contents{comm::bytes_of(bytes)};
      transfer_first(call, options, [&] { return backend->broadcast(contents, details); });
      bytes = text_in(contents[0], length);
    } else {
      bytes.clear();
    }
  }
  done(call);
  return bytes;
}

}  // namespace ddp
