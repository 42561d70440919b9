#include "ddp/process_group.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <stdexcept>

#include "comm/process_group_impl.hpp"
#include "comm/sessions.hpp"
#include "ddp/log.hpp"

namespace ddp {
namespace {

// What one rank may be behind the others at the end of a training; a broken group is not waited for.
constexpr std::chrono::seconds kDrain{5};
// What a device may still have to do after the last wait() of the host, whoever destroys the group.
constexpr std::chrono::milliseconds kDeviceDrain{500};
constexpr std::size_t kAlignment = 64;  // a cache line, and what vectorised reductions like

}  // namespace

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->exceptions_at_birth = std::uncaught_exceptions();
}

ProcessGroup::~ProcessGroup() { impl_->close(std::chrono::milliseconds(0), std::chrono::milliseconds(0)); }

void ProcessGroup::shutdown() noexcept { impl_->close(kDrain, comm::kFarewell); }

void ProcessGroup::all_reduce(at::Tensor& tensor, ReduceOp op, const CallOptions& options) {
  if (impl_->all_reduce_at_once(tensor, op, options)) return;
  const comm::WaitsHere here;
  all_reduce_async(tensor, op, options).wait();
}

void ProcessGroup::reduce(at::Tensor& tensor, int root, ReduceOp op, const CallOptions& options) {
  const comm::WaitsHere here;
  reduce_async(tensor, root, op, options).wait();
}

void ProcessGroup::reduce_scatter(at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                  const CallOptions& options) {
  const comm::WaitsHere here;
  reduce_scatter_async(output, input, op, options).wait();
}

void ProcessGroup::broadcast(at::Tensor& tensor, int root, const CallOptions& options) {
  const comm::WaitsHere here;
  broadcast_async(tensor, root, options).wait();
}

std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& tensor, const CallOptions& options) {
  const comm::WaitsHere here;
  std::vector<at::Tensor> output;
  all_gather_async(output, tensor, options).wait();
  return output;
}

std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& tensor, int root, const CallOptions& options) {
  const comm::WaitsHere here;
  std::vector<at::Tensor> output;
  gather_async(output, tensor, root, options).wait();
  return output;
}

void ProcessGroup::scatter(at::Tensor& output, const std::vector<at::Tensor>& input, int root,
                           const CallOptions& options) {
  const comm::WaitsHere here;
  scatter_async(output, input, root, options).wait();
}

void ProcessGroup::all_to_all(at::Tensor& output, const at::Tensor& input, const Splits& splits,
                              const CallOptions& options) {
  const comm::WaitsHere here;
  all_to_all_async(output, input, splits, options).wait();
}

void ProcessGroup::send(const at::Tensor& tensor, int to, const CallOptions& options) {
  const comm::WaitsHere here;
  send_async(tensor, to, options).wait();
}

void ProcessGroup::recv(at::Tensor& tensor, int from, const CallOptions& options) {
  const comm::WaitsHere here;
  recv_async(tensor, from, options).wait();
}

void ProcessGroup::barrier(const CallOptions& options) {
  if (impl_->barrier_at_once(options)) return;
  const comm::WaitsHere here;
  barrier_async(options).wait();
}

std::vector<std::string> ProcessGroup::all_gather_bytes(std::string_view bytes, const CallOptions& options) {
  const comm::WaitsHere here;
  std::vector<std::string> output;
  all_gather_bytes_async(output, bytes, options).wait();
  return output;
}

at::Tensor ProcessGroup::allocate(std::int64_t bytes) {
  const comm::Session::Calling calling(*impl_->session);
  if (impl_->shm && !impl_->closed && device().is_cpu()) return impl_->shm->allocate(bytes);
  const auto options = at::TensorOptions().dtype(at::kByte).device(device());
  if (auto registered = impl_->registered_memory(bytes); registered.defined()) return registered.zero_();
  auto memory = at::zeros({bytes}, options);
  if (reinterpret_cast<std::uintptr_t>(memory.data_ptr()) % kAlignment != 0)
    throw std::logic_error("allocate: the tensor library's memory is not aligned to 64 bytes");
  return memory;
}

void ProcessGroup::fail(std::string_view text) noexcept { impl_->session->fail(text); }

void ProcessGroup::check() const {
  if (const auto breakage = impl_->session->health().breakage()) breakage->raise(origin(), "process group");
}

void ProcessGroup::mark_step(std::int64_t step) noexcept { impl_->session->recorder().mark_step(step); }

int ProcessGroup::rank() const noexcept { return impl_->environment.rank; }
int ProcessGroup::size() const noexcept { return impl_->environment.world_size; }
Origin ProcessGroup::origin() const noexcept { return impl_->session->origin(); }
at::Device ProcessGroup::device() const noexcept { return impl_->device; }
const Environment& ProcessGroup::environment() const noexcept { return impl_->environment; }
std::string_view ProcessGroup::backend() const noexcept { return impl_->backend_name; }
std::chrono::milliseconds ProcessGroup::timeout() const noexcept { return impl_->timeout; }

void ProcessGroup::Impl::close(std::chrono::milliseconds drain, std::chrono::milliseconds farewell) noexcept {
  if (closed.exchange(true)) return;  // without `order`: a thread that is stuck in a call may hold it
  if (std::uncaught_exceptions() > exceptions_at_birth && !session->has_left()) {
    session->orphan();  // a goodbye now would hide the exception from the other ranks
    release_backend();
    return;
  }
  session->wait_idle(device_side ? std::max(drain, kDeviceDrain) : drain);
  session->leave();
  if (farewell.count() > 0) {
    const std::chrono::milliseconds broken = comm::kBrokenFarewell;
    session->wait_for_others(session->health().breakage() ? std::min(farewell, broken) : farewell);
    session->give_up_others();
  }
  release_backend();
  comm::forget_ended();
}

// A broken Gloo cannot be ended: its destructor would wait for what never comes. Its threads are left
// alone then, to the end of the process; so are those of a call that still runs, and all of them at exit.
void ProcessGroup::Impl::release_backend() noexcept {
  if (!owned_backend) return;
  if (!session->is_idle() || !session->is_sound() || comm::is_exiting()) {
    comm::park(std::move(owned_backend), std::move(device_side), session);
  } else {
    session->set_progress(nullptr);
    device_side.reset();
    owned_backend.reset();
  }
}

at::Tensor ProcessGroup::Impl::registered_memory(std::int64_t bytes) const {
  if (closed || !device_side || !nccl.register_memory || session->health().breakage()) return {};
  auto& engine_backend = device_side->backend();
  try {
    if (!engine_backend.supportsTensorAlloc(device.index())) return {};
    return engine_backend.allocateTensor(bytes, at::TensorOptions().dtype(at::kByte).device(device));
  } catch (const std::exception& error) {
    log::detail(log::Subsystem::bucket, "no registered memory: {}", error.what());
    return {};
  }
}

}  // namespace ddp
