#include "comm/backend_shm.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>
#include <utility>

#include "comm/shm/unavailable.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using c10d::OpType;
using WorkPtr = ShmBackend::WorkPtr;

shm::Type type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return shm::Type::float32;
    case at::kDouble:
      return shm::Type::float64;
    case at::kBFloat16:
      return shm::Type::bfloat16;
    case at::kHalf:
      return shm::Type::float16;
    case at::kChar:
      return shm::Type::int8;
    case at::kByte:
      return shm::Type::uint8;
    case at::kShort:
      return shm::Type::int16;
    case at::kInt:
      return shm::Type::int32;
    case at::kLong:
      return shm::Type::int64;
    default:
      throw std::invalid_argument(std::string("shared memory: no reduction of ") + c10::toString(type));
  }
}

shm::Combine combine_of(c10d::ReduceOp::RedOpType operation) {
  switch (operation) {
    case c10d::ReduceOp::SUM:
      return shm::Combine::sum;
    case c10d::ReduceOp::MIN:
      return shm::Combine::min;
    case c10d::ReduceOp::MAX:
      return shm::Combine::max;
    case c10d::ReduceOp::PRODUCT:
      return shm::Combine::product;
    default:
      throw std::invalid_argument("shared memory: sum, min, max and product are what it reduces by");
  }
}

const at::Tensor& dense(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_contiguous())
    throw std::invalid_argument("shared memory: a tensor is not contiguous, or not on the CPU");
  return tensor;
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) throw std::invalid_argument("shared memory: one tensor a call");
  return dense(tensors.front());
}

std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// A move's call, to be filled in.
struct Move {
  explicit Move(int ranks) {
    call.terms.kind = shm::Kind::move;
    call.parts.resize(static_cast<std::size_t>(ranks));
    call.targets.resize(static_cast<std::size_t>(ranks));
  }
  void send(const at::Tensor& stream) {
    call.stream = data_of(stream);
    call.stream_bytes = stream.nbytes();
    tensors.push_back(stream);
  }
  void part(int to, std::uint64_t begin, std::uint64_t end) { call.parts[static_cast<std::size_t>(to)] = {begin, end}; }
  void take(int from, const at::Tensor& target) {
    take(from, data_of(dense(target)), target.nbytes());
    tensors.push_back(target);
  }
  void take(int from, std::byte* data, std::uint64_t bytes) {
    call.targets[static_cast<std::size_t>(from)] = {data, bytes};
  }
  void keep(const at::Tensor& tensor) { tensors.push_back(tensor); }

  shm::Call call;
  std::vector<at::Tensor> tensors;
};

// A message that waits for room, or for the other rank, is under way once somebody waits for it.
class MessageWork final : public c10d::Work {
 public:
  MessageWork(OpType type, std::function<bool()> transfer) : c10d::Work(-1, type), transfer_(std::move(transfer)) {}

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    if (isCompleted()) return true;
    if (!transfer_()) throw std::runtime_error("shared memory: the other rank has gone");
    finish();
    return true;
  }

 private:
  const std::function<bool()> transfer_;
};

}  // namespace

ShmBackend::ShmBackend(std::shared_ptr<shm::Memory> memory, const BackendSetup& setup)
    : Backend(setup.environment.rank, setup.environment.world_size),
      engine_(std::make_shared<ShmEngine>(std::move(memory), setup.environment.rank, setup.is_broken)),
      has_left_(setup.has_left) {}

ShmBackend::~ShmBackend() { engine_->end(); }

at::Tensor ShmBackend::allocate(std::int64_t bytes) {
  const auto options = at::TensorOptions().dtype(at::kByte);
  if (bytes == 0) return at::zeros({0}, options);
  // The tensor may outlive the group.
  const auto memory = engine_->shared_memory();
  try {
    if (auto* const data = memory->allocate(static_cast<std::uint64_t>(bytes)))
      return at::from_blob(
          data, {bytes}, [memory](void* freed) { memory->free(static_cast<std::byte*>(freed)); }, options);
    warn_once("its address range is used up");
  } catch (const shm::Unavailable& error) {
    warn_once(error.what());
  }
  return at::zeros({bytes}, options);
}

void ShmBackend::warn_once(std::string_view why) {
  if (!has_warned_.exchange(true))
    log::all.warn("no more shared memory: {}; reductions of further tensors copy them", why);
}

WorkPtr ShmBackend::begin_signed(Signing signing, const std::function<WorkPtr()>& begin) {
  struct Signed {
    ShmBackend& backend;
    ~Signed() { backend.next_signing_ = nullptr; }
  };
  const Signed end{*this};
  next_signing_ = &signing;
  auto work = begin ? begin() : WorkPtr();
  return next_signing_ != nullptr ? submit({}, {}, OpType::BARRIER) : work;
}

WorkPtr ShmBackend::submit(shm::Call call, std::vector<at::Tensor> tensors, OpType type) {
  auto* const signing = std::exchange(next_signing_, nullptr);
  if (signing == nullptr) return engine_->submit(std::move(call), std::move(tensors), type);
  call.label = signing->label;
  call.wants_labels = signing->wants_labels;
  return engine_->submit(std::move(call), std::move(tensors), type, std::move(signing->on_labels));
}

shm::Call ShmBackend::reduction_of(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation) const {
  shm::Call call;
  call.terms = {shm::Kind::reduce, type_of(tensor.scalar_type()), combine_of(operation), tensor.nbytes()};
  call.data = data_of(tensor);
  call.is_shared = engine_->shared_memory()->mapping().contains(call.data, call.terms.bytes);
  return call;
}

WorkPtr ShmBackend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  return submit(reduction_of(only(tensors), options.reduceOp), tensors, OpType::ALLREDUCE);
}

// The result is everywhere; the other ranks' tensors are scratch, as with Gloo.
WorkPtr ShmBackend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) {
  return submit(reduction_of(only(tensors), options.reduceOp), tensors, OpType::REDUCE);
}

WorkPtr ShmBackend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const auto& tensor = only(tensors);
  const auto root = static_cast<int>(options.rootRank);
  Move move(getSize());
  if (getRank() == root) {
    move.send(tensor);
    for (int rank = 0; rank < getSize(); ++rank)
      if (rank != root) move.part(rank, 0, tensor.nbytes());
  } else {
    move.take(root, tensor);
  }
  return submit(std::move(move.call), std::move(move.tensors), OpType::BROADCAST);
}

WorkPtr ShmBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                              const c10d::AllgatherOptions& /*options*/) {
  const auto& input = only(inputs);
  Move move(getSize());
  move.send(input);
  for (int rank = 0; rank < getSize(); ++rank) {
    move.part(rank, 0, input.nbytes());
    move.take(rank, outputs.at(0).at(static_cast<std::size_t>(rank)));
  }
  return submit(std::move(move.call), std::move(move.tensors), OpType::ALLGATHER);
}

WorkPtr ShmBackend::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                           const c10d::GatherOptions& options) {
  const auto& input = only(inputs);
  const auto root = static_cast<int>(options.rootRank);
  Move move(getSize());
  move.send(input);
  move.part(root, 0, input.nbytes());
  for (int rank = 0; getRank() == root && rank < getSize(); ++rank)
    move.take(rank, outputs.at(0).at(static_cast<std::size_t>(rank)));
  return submit(std::move(move.call), std::move(move.tensors), OpType::GATHER);
}

WorkPtr ShmBackend::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                            const c10d::ScatterOptions& options) {
  const auto& output = only(outputs);
  const auto root = static_cast<int>(options.rootRank);
  Move move(getSize());
  if (getRank() == root) {
    std::vector<at::Tensor> rows;
    for (const auto& row : inputs.at(0)) rows.push_back(row.reshape(-1));
    move.send(at::cat(rows));
    std::uint64_t begin = 0;
    for (int rank = 0; rank < getSize(); ++rank, begin += output.nbytes())
      move.part(rank, begin, begin + output.nbytes());
  }
  move.take(root, output);
  return submit(std::move(move.call), std::move(move.tensors), OpType::SCATTER);
}

WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                  std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& /*options*/) {
  const auto bytes_of = [&](const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int rank) {
    if (splits.empty()) return tensor.nbytes() / static_cast<std::uint64_t>(getSize());
    const auto row = tensor.size(0) == 0 ? 0 : tensor.nbytes() / static_cast<std::uint64_t>(tensor.size(0));
    return static_cast<std::uint64_t>(splits.at(static_cast<std::size_t>(rank))) * row;
  };
  Move move(getSize());
  move.send(dense(input));
  move.keep(dense(output));
  std::uint64_t sent = 0, taken = 0;
  for (int rank = 0; rank < getSize(); ++rank) {
    const auto to = bytes_of(input, input_splits, rank), from = bytes_of(output, output_splits, rank);
    move.part(rank, sent, sent + to);
    move.take(rank, data_of(output) + taken, from);
    sent += to;
    taken += from;
  }
  return submit(std::move(move.call), std::move(move.tensors), OpType::ALLTOALL_BASE);
}

WorkPtr ShmBackend::message(OpType type, const at::Tensor& tensor, int peer, int tag) {
  const auto stop = [engine = engine_, has_left = has_left_, peer] { return engine->is_over() || has_left(peer); };
  const auto transfer = [engine = engine_, stop, type, tensor, peer, tag = static_cast<std::uint32_t>(tag)] {
    auto& mail = engine->mail();
    return type == OpType::SEND ? mail.send(data_of(tensor), tensor.nbytes(), peer, tag, stop)
                                : mail.receive(data_of(tensor), tensor.nbytes(), peer, tag, stop);
  };
  return c10::make_intrusive<MessageWork>(type, transfer);
}

WorkPtr ShmBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  auto work = message(OpType::SEND, only(tensors), to, tag);
  if (tensors.front().nbytes() <= shm::Mail::kLetterBytes) work->wait(kNoTimeout);
  return work;
}

WorkPtr ShmBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  return message(OpType::RECV, only(tensors), from, tag);
}

WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& /*options*/) { return submit({}, {}, OpType::BARRIER); }

}  // namespace ddp::comm
