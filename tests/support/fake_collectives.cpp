#include "support/fake_collectives.hpp"

#include <ATen/ATen.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "support/fake_accelerator.hpp"
#include "support/fake_device_backend.hpp"
#include "support/fake_operators.hpp"

namespace ddp::testing {

/// What all calls of a group share.
struct FakeCollectives::Group {
  c10::intrusive_ptr<c10d::Backend> carrier;
  at::Device device;
  FakeStreamKey stream;
  std::atomic<bool> is_aborted{false};
};

namespace {

using Tensors = FakeCollectives::Tensors;
using Group = FakeCollectives::Group;

// What a carrier still waits for may never come: it is kept to the end of the process, as its destructor would wait.
void park(c10::intrusive_ptr<c10d::Backend> carrier) {
  static auto* const parked = new std::vector<c10::intrusive_ptr<c10d::Backend>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  parked->push_back(std::move(carrier));
}

/// Bytes under way. Threads: run() from one at a time, all else from any.
class Transfer {
 public:
  using Launch = std::function<FakeCollectives::Work(c10d::Backend&)>;
  Transfer(std::shared_ptr<Group> group, Launch launch, std::function<void()> finish)
      : group_(std::move(group)), launch_(std::move(launch)), finish_(std::move(finish)) {}
  ~Transfer() {
    if (thread_.joinable()) thread_.detach();
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// A task of the group's stream.
  static bool run(const std::shared_ptr<Transfer>& self) {
    if (self->group_->is_aborted) return self->end("the communicator was aborted");
    if (fake_engine().fails) return self->end("the device failed");
    // The carrier's works end for some calls in wait() alone, which takes a thread.
    if (!self->thread_.joinable()) self->thread_ = std::thread([self] { self->carry(); });
    if (!self->is_carried_) return false;
    self->thread_.join();
    self->error_ = self->carried_error_;
    self->has_ended_ = true;
    return true;
  }

  bool has_ended() const { return has_ended_ || group_->is_aborted; }
  std::exception_ptr exception() const {
    if (!has_ended_)
      return group_->is_aborted ? std::make_exception_ptr(std::runtime_error("the communicator was aborted")) : nullptr;
    return error_;
  }

 private:
  bool end(const char* why) {
    error_ = std::make_exception_ptr(std::runtime_error(why));
    has_ended_ = true;
    return true;
  }
  void carry() {
    try {
      launch_(*group_->carrier)->wait();
      if (finish_) finish_();
    } catch (...) {
      carried_error_ = std::current_exception();
      park(group_->carrier);
    }
    is_carried_ = true;
  }

  const std::shared_ptr<Group> group_;
  const Launch launch_;
  const std::function<void()> finish_;
  std::thread thread_;
  std::exception_ptr carried_error_, error_;  // each before its flag is set
  std::atomic<bool> is_carried_{false}, has_ended_{false};
};

class FakeWork final : public c10d::Work {
 public:
  FakeWork(std::shared_ptr<Group> group, std::shared_ptr<Transfer> transfer, std::string what, c10d::OpType type)
      : c10d::Work(group->carrier->getRank(), type),
        group_(std::move(group)),
        transfer_(std::move(transfer)),
        what_(std::move(what)) {}

  void ends_at(FakeStreams::Position end) { end_ = end; }

  bool isCompleted() override {
    TORCH_CHECK(!fake_accelerator().is_capturing, "to ask for an end is not permitted while a stream is captured");
    const int limit = fake_engine().polls_until_progress;
    if (limit >= 0 && ++polls_ > limit) fake_accelerator().streams.advance(group_->stream, end_);
    return transfer_->has_ended();
  }
  bool isSuccess() const override { return transfer_->has_ended() && !exception(); }
  std::exception_ptr exception() const override { return transfer_->exception(); }

  void synchronize() override {
    auto& accelerator = fake_accelerator();
    const auto current = FakeAccelerator::current(group_->device);
    fake_engine().note(std::to_string(current) + " waits for " + what_);
    accelerator.streams.add_wait({group_->device.index(), current}, group_->stream, end_);
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    if (const auto error = exception()) std::rethrow_exception(error);
    return true;
  }

 private:
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Transfer> transfer_;
  const std::string what_;
  FakeStreams::Position end_ = 0;
  std::atomic<int> polls_{0};
};

Tensors views(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(host_view(tensor));
  return all;
}

std::vector<Tensors> views(const std::vector<Tensors>& lists) {
  std::vector<Tensors> all;
  for (const auto& tensors : lists) all.push_back(views(tensors));
  return all;
}

void append(Tensors& to, const std::vector<Tensors>& lists) {
  for (const auto& tensors : lists) to.insert(to.end(), tensors.begin(), tensors.end());
}

std::size_t bytes_of(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

std::string name_of(const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return " sum";
    case c10d::ReduceOp::AVG:
      return " avg";
    case c10d::ReduceOp::MIN:
      return " min";
    case c10d::ReduceOp::MAX:
      return " max";
    case c10d::ReduceOp::PRODUCT:
      return " product";
    default:
      TORCH_CHECK(false, "the fake engine has no such reduction");
  }
}

// The carrier has no mean: `op` becomes a sum, and this what is left to do.
std::function<void()> divide_for_mean(c10d::ReduceOp& op, const Tensors& tensors, int ranks) {
  if (op != c10d::ReduceOp::AVG) return nullptr;
  op = c10d::ReduceOp::SUM;
  return [tensors, ranks] {
    for (const auto& tensor : tensors) {
      if (tensor.is_floating_point()) {
        tensor.div_(ranks);
      } else {
        tensor.div_(ranks, "trunc");
      }
    }
  };
}

}  // namespace

FakeCollectives::FakeCollectives(c10::intrusive_ptr<c10d::Backend> carrier, at::Device device)
    : Backend(carrier->getRank(), carrier->getSize()),
      group_(new Group{std::move(carrier), device, FakeAccelerator::key(fake_accelerator().new_stream(device, 0))}) {
  fake_accelerator().streams.make_independent(group_->stream);
  setBoundDeviceId(device);
}

FakeCollectives::~FakeCollectives() = default;

FakeCollectives::Work FakeCollectives::start(Asked asked, std::function<Work(c10d::Backend&)> launch,
                                             std::function<void()> finish) {
  for (const auto& tensor : asked.tensors)
    TORCH_CHECK(tensor.device() == group_->device && tensor.is_contiguous(), asked.what, " of a tensor on ",
                tensor.device(), ", contiguous: ", tensor.is_contiguous());
  auto& streams = fake_accelerator().streams;
  const auto current = FakeAccelerator::current(group_->device);
  asked.what += ' ' + std::to_string(asked.bytes);
  fake_engine().note(asked.what + " on stream " + std::to_string(group_->stream.id) + " while current was " +
                     std::to_string(current));
  const FakeStreamKey callers{group_->device.index(), current};
  streams.add_wait(group_->stream, callers, streams.end(callers));
  const auto transfer = std::make_shared<Transfer>(group_, std::move(launch), std::move(finish));
  auto work = c10::make_intrusive<FakeWork>(group_, transfer, asked.what, asked.type);
  const auto end = streams.add(group_->stream, [transfer, tensors = asked.tensors] { return Transfer::run(transfer); });
  work->ends_at(end);
  if (fake_engine().is_early) streams.advance(group_->stream, end);
  return latest_ = work;
}

void FakeCollectives::startCoalescing() {
  fake_engine().note("begin together");
  latest_.reset();
}

FakeCollectives::Work FakeCollectives::endCoalescing() {
  fake_engine().note("end together");
  return latest_;
}

FakeCollectives::Work FakeCollectives::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return start({"broadcast", c10d::OpType::BROADCAST, tensors, bytes_of(tensors)},
               [memory = views(tensors), options](c10d::Backend& carrier) mutable {
                 return carrier.broadcast(memory, options);
               });
}

FakeCollectives::Work FakeCollectives::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto carried = options;
  auto finish = divide_for_mean(carried.reduceOp, views(tensors), getSize());
  return start(
      {"allreduce" + name_of(options.reduceOp), c10d::OpType::ALLREDUCE, tensors, bytes_of(tensors)},
      [memory = views(tensors), carried](c10d::Backend& carrier) mutable { return carrier.allreduce(memory, carried); },
      std::move(finish));
}

FakeCollectives::Work FakeCollectives::allreduce_coalesced(Tensors& tensors,
                                                           const c10d::AllreduceCoalescedOptions& options) {
  auto carried = options;
  auto finish = divide_for_mean(carried.reduceOp, views(tensors), getSize());
  return start(
      {"allreduce_coalesced" + name_of(options.reduceOp), c10d::OpType::ALLREDUCE_COALESCED, tensors,
       bytes_of(tensors)},
      [memory = views(tensors), carried](c10d::Backend& carrier) mutable {
        return carrier.allreduce_coalesced(memory, carried);
      },
      std::move(finish));
}

FakeCollectives::Work FakeCollectives::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto carried = options;
  auto finish = divide_for_mean(carried.reduceOp, views(tensors), getSize());
  return start(
      {"reduce" + name_of(options.reduceOp), c10d::OpType::REDUCE, tensors, bytes_of(tensors)},
      [memory = views(tensors), carried](c10d::Backend& carrier) mutable { return carrier.reduce(memory, carried); },
      std::move(finish));
}

FakeCollectives::Work FakeCollectives::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  auto all = inputs;
  append(all, outputs);
  return start({"allgather", c10d::OpType::ALLGATHER, all, bytes_of(inputs)},
               [to = views(outputs), from = views(inputs), options](c10d::Backend& carrier) mutable {
                 return carrier.allgather(to, from, options);
               });
}

FakeCollectives::Work FakeCollectives::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::GatherOptions& options) {
  auto all = inputs;
  append(all, outputs);
  return start({"gather", c10d::OpType::GATHER, all, bytes_of(inputs)},
               [to = views(outputs), from = views(inputs), options](c10d::Backend& carrier) mutable {
                 return carrier.gather(to, from, options);
               });
}

FakeCollectives::Work FakeCollectives::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ScatterOptions& options) {
  auto all = outputs;
  append(all, inputs);
  return start({"scatter", c10d::OpType::SCATTER, all, bytes_of(outputs)},
               [to = views(outputs), from = views(inputs), options](c10d::Backend& carrier) mutable {
                 return carrier.scatter(to, from, options);
               });
}

FakeCollectives::Work FakeCollectives::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                     std::vector<int64_t>& output_sizes,
                                                     std::vector<int64_t>& input_sizes,
                                                     const c10d::AllToAllOptions& options) {
  return start({"alltoall", c10d::OpType::ALLTOALL_BASE, {output, input}, input.nbytes()},
               [to = host_view(output), from = host_view(input), output_sizes, input_sizes,
                options](c10d::Backend& carrier) mutable {
                 return carrier.alltoall_base(to, from, output_sizes, input_sizes, options);
               });
}

FakeCollectives::Work FakeCollectives::send(Tensors& tensors, int to, int tag) {
  return start(
      {"send", c10d::OpType::SEND, tensors, bytes_of(tensors)},
      [memory = views(tensors), to, tag](c10d::Backend& carrier) mutable { return carrier.send(memory, to, tag); });
}

FakeCollectives::Work FakeCollectives::recv(Tensors& tensors, int from, int tag) {
  return start(
      {"recv", c10d::OpType::RECV, tensors, bytes_of(tensors)},
      [memory = views(tensors), from, tag](c10d::Backend& carrier) mutable { return carrier.recv(memory, from, tag); });
}

FakeCollectives::Work FakeCollectives::barrier(const c10d::BarrierOptions&) {
  return start({"barrier", c10d::OpType::BARRIER, {}, 0}, [](c10d::Backend& carrier) { return carrier.barrier(); });
}

void FakeCollectives::abort() {
  fake_engine().note("abort");
  if (!group_->is_aborted.exchange(true)) park(group_->carrier);
}

void FakeCollectives::shutdown() { fake_engine().note("shutdown"); }

at::Tensor FakeCollectives::allocateTensor(long size, at::TensorOptions options) {
  fake_engine().note("allocate " + std::to_string(size));
  return at::empty({size}, options.device(group_->device));
}

}  // namespace ddp::testing
