#include "comm/backend_staged.hpp"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <poll.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/service_thread.hpp"

namespace ddp::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// Ends on the device once what came back is there.
class StagedWork final : public c10d::Work {
 public:
  StagedWork(c10d::OpType type, at::Device device) : Work(-1, type), device_(device), end_(device.type()) {}

  // From the thread that stages.
  void hand_over(const c10::Stream& copies) {
    end_.record(copies);
    tell(nullptr);
  }
  void fail(std::exception_ptr error) { tell(std::move(error)); }

  // From whoever waits.
  bool isCompleted() override {
    const std::lock_guard lock(mutex_);
    return is_told_ && (exception_ || end_.query());
  }
  bool isSuccess() const override { return !exception(); }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [this] { return is_told_; });
    if (exception_) std::rethrow_exception(exception_);
    end_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }

 private:
  void tell(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_told_, true)) return;  // it was aborted before
    exception_ = std::move(error);
    cv_.notify_all();
  }

  const at::Device device_;
  c10::Event end_;
  bool is_told_ = false;
};

/// Tensors on the device and their doubles in pinned memory.
struct Doubles {
  Tensors on_device, in_memory;

  explicit Doubles(const Tensors& tensors) : on_device(tensors) {
    for (const auto& tensor : tensors)
      in_memory.push_back(
          at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(tensor.numel() > 0)));
  }
};

struct Job {
  Doubles sent, received;
  std::function<WorkPtr(Tensors& sent, Tensors& received)> call;
  c10::intrusive_ptr<StagedWork> work;
  c10::Event is_in_memory;
};

class StagedBackend final : public c10d::Backend {
 public:
  StagedBackend(c10::intrusive_ptr<c10d::Backend> host, at::Device device, int rank, int size)
      : Backend(rank, size),
        host_(std::move(host)),
        device_(device),
        copies_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
        thread_("ddp-staging", [this](int stop) { run(stop); }) {}

  const std::string getBackendName() const override { return host_->getBackendName(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return in_place(c10d::OpType::ALLREDUCE, tensors,
                    [host = host_, options](Tensors& all) { return host->allreduce(all, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return in_place(c10d::OpType::BROADCAST, tensors,
                    [host = host_, options](Tensors& all) { return host->broadcast(all, options); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return in_place(c10d::OpType::REDUCE, tensors,
                    [host = host_, options](Tensors& all) { return host->reduce(all, options); });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return submit(c10d::OpType::ALLGATHER, Doubles(inputs), Doubles(outputs.at(0)),
                  [host = host_, options](Tensors& in, Tensors& out) {
                    std::vector<Tensors> lists{out};
                    return host->allgather(lists, in, options);
                  });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return submit(c10d::OpType::GATHER, Doubles(inputs), Doubles(outputs.empty() ? Tensors() : outputs[0]),
                  [host = host_, options](Tensors& in, Tensors& out) {
                    std::vector<Tensors> lists;
                    if (!out.empty()) lists.push_back(out);
                    return host->gather(lists, in, options);
                  });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return submit(c10d::OpType::SCATTER, Doubles(inputs.empty() ? Tensors() : inputs[0]), Doubles(outputs),
                  [host = host_, options](Tensors& in, Tensors& out) {
                    std::vector<Tensors> lists;
                    if (!in.empty()) lists.push_back(in);
                    return host->scatter(out, lists, options);
                  });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return submit(c10d::OpType::ALLTOALL_BASE, Doubles({input}), Doubles({output}),
                  [host = host_, output_splits, input_splits, options](Tensors& in, Tensors& out) mutable {
                    return host->alltoall_base(out[0], in[0], output_splits, input_splits, options);
                  });
  }

  /// The host's own transfer cannot be ended; whoever waits for it is told.
  void abort() override {
    const auto error = std::make_exception_ptr(std::runtime_error("aborted"));
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    for (const auto& job : waiting_) job->work->fail(error);
    waiting_.clear();
    if (current_) current_->fail(error);
  }

 private:
  WorkPtr in_place(c10d::OpType type, Tensors& tensors, std::function<WorkPtr(Tensors&)> call) {
    const Doubles both(tensors);
    return submit(type, both, both, [call = std::move(call)](Tensors& in, Tensors&) { return call(in); });
  }

  WorkPtr submit(c10d::OpType type, Doubles sent, Doubles received, std::function<WorkPtr(Tensors&, Tensors&)> call) {
    auto job = std::make_shared<Job>(Job{std::move(sent), std::move(received), std::move(call),
                                         c10::make_intrusive<StagedWork>(type, device_), c10::Event(device_.type())});
    const c10::impl::VirtualGuardImpl guard(device_.type());
    c10::Event given(device_.type());
    given.record(guard.getStream(device_));
    const c10::StreamGuard on_copies(copies_);
    given.block(copies_);
    for (auto* const doubles : {&job->sent, &job->received})  // the allocator knows them from other streams alone
      for (const auto& tensor : doubles->on_device) tensor.record_stream(copies_);
    for (std::size_t i = 0; i < job->sent.in_memory.size(); ++i)
      job->sent.in_memory[i].copy_(job->sent.on_device[i], /*non_blocking=*/true);
    job->is_in_memory.record(copies_);
    const std::lock_guard lock(mutex_);
    if (is_aborted_) throw std::runtime_error("the group is broken");
    waiting_.push_back(job);
    changed_.notify_one();
    return job->work;
  }

  void run(int stop) {
    c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);  // else the first one would get a context
    while (auto job = next(stop)) {
      try {
        job->is_in_memory.synchronize();
        job->call(job->sent.in_memory, job->received.in_memory)->wait();
        const c10::StreamGuard on_copies(copies_);
        for (std::size_t i = 0; i < job->received.on_device.size(); ++i)
          job->received.on_device[i].copy_(job->received.in_memory[i], /*non_blocking=*/true);
        job->work->hand_over(copies_);
      } catch (const std::exception&) {
        job->work->fail(std::current_exception());
      }
    }
  }

  /// Null once the thread is to end.
  std::shared_ptr<Job> next(int stop) {
    std::unique_lock lock(mutex_);
    current_ = nullptr;
    for (;;) {
      if (!waiting_.empty()) {
        auto job = std::move(waiting_.front());
        waiting_.pop_front();
        current_ = job->work;
        return job;
      }
      pollfd end{stop, POLLIN, 0};
      if (::poll(&end, 1, 0) > 0) return nullptr;
      changed_.wait_for(lock, std::chrono::milliseconds(50));
    }
  }

  const c10::intrusive_ptr<c10d::Backend> host_;
  const at::Device device_;
  const c10::Stream copies_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> waiting_;
  c10::intrusive_ptr<StagedWork> current_;
  bool is_aborted_ = false;
  ServiceThread thread_;  // last: it uses what stands above
};

class StagedDeviceBackend final : public DeviceBackend {
 public:
  StagedDeviceBackend(at::DeviceType type, std::string host) : type_(type), host_(std::move(host)) {}

  std::string name() const override { return host_; }
  at::DeviceType type() const override { return type_; }
  int visible() const override {
    const auto* const guard = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(type_)].load();
    return guard == nullptr ? 0 : guard->deviceCount();
  }
  void take(at::Device device) const override {
    c10::impl::VirtualGuardImpl(type_).setDevice(device);
    at::empty({1}, at::TensorOptions().pinned_memory(true));  // what that needs of LibTorch then outlives the groups
  }
  DeviceIdentity identity(at::Device) const override { return {}; }
  Reductions reductions(int ranks) const override { return {.ranks = ranks}; }
  c10::intrusive_ptr<c10d::Backend> make(const BackendSetup& setup) const override {
    auto own = setup;
    own.store = c10::make_intrusive<c10d::PrefixStore>("staged", setup.store);
    return c10::make_intrusive<StagedBackend>(make_host_backend(host_, own), setup.device, setup.environment.rank,
                                              setup.environment.world_size);
  }
  bool is_capturing(at::Device) const override { return false; }

 private:
  const at::DeviceType type_;
  const std::string host_;
};

}  // namespace

std::shared_ptr<const DeviceBackend> staged_device_backend(at::DeviceType type, std::string host) {
  return std::make_shared<StagedDeviceBackend>(type, std::move(host));
}

}  // namespace ddp::comm
