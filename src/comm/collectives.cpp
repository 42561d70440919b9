// The collectives of ProcessGroup on tensors of one size: reductions, broadcast, barrier.
#include <ATen/core/grad_mode.h>

#include <stdexcept>

#include "comm/planned_calls.hpp"
#include "comm/process_group_impl.hpp"

namespace ddp {

using comm::Operation;
using comm::Signature;
using comm::Wire;

namespace {

using Plan = ProcessGroup::Impl::Plan;
using Pending = ProcessGroup::Impl::Pending;
using Signatures = ProcessGroup::Impl::Signatures;

Signature signature_of_reduction(Operation operation, const at::Tensor& tensor, ReduceOp op) {
  Signature signature(operation, tensor);
  signature.reduce_op = static_cast<std::int64_t>(op);
  return signature;
}

// A wire that never is the user's own memory, for reductions whose result belongs elsewhere.
Wire wire_of_copy(const at::Tensor& tensor, ReduceOp op, comm::Reductions reductions) {
  const at::NoGradGuard no_grad;
  return comm::wire_for_reduction(tensor.detach().clone(), op, reductions);
}

}  // namespace

Plan ProcessGroup::Impl::all_reduce(at::Tensor& tensor, ReduceOp op) {
  comm::require_writable(tensor, device, "all_reduce");
  const auto way = route(tensor);
  auto wire = comm::wire_for_reduction(tensor, op, way.reductions);
  c10d::AllreduceOptions details;
  details.reduceOp = comm::to_c10d(comm::operation_on_wire(tensor.scalar_type(), op, way.reductions));
  Plan plan{signature_of_reduction(Operation::all_reduce, tensor, op)};
  plan.stream = way.stream;
  plan.begin = [backend = way.backend, details, flat = wire.tensor](const Signatures&) {
    if (flat.numel() == 0) return Pending();
    std::vector<at::Tensor> tensors{flat};
    return backend->allreduce(tensors, details);
  };
  plan.reads_signatures = false;
  plan.finish = std::move(wire.finish);
  return plan;
}

bool ProcessGroup::Impl::all_reduce_at_once(at::Tensor& tensor, ReduceOp op, const CallOptions& options) {
  // Not larger: what the ceremony costs does not show there, and this rank's other calls wait for this one's end.
  constexpr std::size_t most_bytes = 1 << 20;
  const comm::Session::Calling calling(*session);
  if (closed || !shm || !tensor.is_cpu()) return false;
  comm::require_writable(tensor, device, "all_reduce");
  if (tensor.nbytes() == 0 || tensor.nbytes() > most_bytes) return false;
  if (!comm::reduces_in_place(tensor, op, reductions())) return false;
  const Signature signature = signature_of_reduction(Operation::all_reduce, tensor, op);
  return run_at_once(
      {signature, options.label},
      shm->reduction_of(tensor, comm::to_c10d(comm::operation_on_wire(tensor.scalar_type(), op, reductions()))), tensor,
      options);
}

Work ProcessGroup::all_reduce_async(at::Tensor& tensor, ReduceOp op, const CallOptions& options) {
  return impl_->start(impl_->all_reduce(tensor, op), options);
}

Work comm::PlannedCalls::all_reduce(ProcessGroup& group, at::Tensor& tensor, const CallOptions& options, ReduceOp op) {
  auto plan = group.impl_->all_reduce(tensor, op);
  plan.is_signed = false;
  return group.impl_->start(std::move(plan), options);
}

namespace {

// Of calls that begin one after the other within one launch.
Plan together(std::vector<Plan> parts, c10d::Backend& backend) {
  auto plan = std::move(parts[0]);
  plan.begin = [parts, first = plan.begin, &backend](const Signatures& none) {
    backend.startCoalescing();
    try {
      first(none);
      for (std::size_t i = 1; i < parts.size(); ++i) parts[i].begin(none);
    } catch (...) {
      backend.endCoalescing();  // else what this thread begins next would be part of it
      throw;
    }
    return backend.endCoalescing();
  };
  plan.finish = [parts, first = plan.finish] {
    if (first) first();
    for (std::size_t i = 1; i < parts.size(); ++i)
      if (parts[i].finish) parts[i].finish();
  };
  return plan;
}

}  // namespace

std::vector<Work> comm::PlannedCalls::all_reduce_each(ProcessGroup& group, std::vector<at::Tensor>& tensors,
                                                      const CallOptions& options, ReduceOp op) {
  auto& impl = *group.impl_;
  std::vector<Plan> plans;
  for (auto& tensor : tensors) {
    plans.push_back(impl.all_reduce(tensor, op));
    plans.back().is_signed = false;
  }
  if (plans.size() > 1 && impl.device_side && impl.device_side->backend().supportsCoalescing()) {
    auto plan = together(std::move(plans), impl.device_side->backend());
    plans.clear();
    plans.push_back(std::move(plan));
  }
  std::vector<Work> works;
  for (auto& plan : plans) works.push_back(impl.start(std::move(plan), options));
  return works;
}

Plan ProcessGroup::Impl::broadcast(at::Tensor& tensor, int root) {
  comm::require_writable(tensor, device, "broadcast");
  comm::require_root(root, size(), "broadcast");
  const auto way = route(tensor);
  auto wire = comm::wire_of_bytes(tensor);
  c10d::BroadcastOptions details;
  details.rootRank = root;
  Plan plan{Signature(Operation::broadcast, tensor)};
  plan.signature.root = root;
  plan.stream = way.stream;
  plan.begin = [backend = way.backend, details, flat = wire.tensor](const Signatures&) {
    if (flat.numel() == 0) return Pending();
    std::vector<at::Tensor> tensors{flat};
    return backend->broadcast(tensors, details);
  };
  plan.reads_signatures = false;
  if (environment.rank != root) plan.finish = std::move(wire.finish);
  return plan;
}

Work ProcessGroup::broadcast_async(at::Tensor& tensor, int root, const CallOptions& options) {
  return impl_->start(impl_->broadcast(tensor, root), options);
}

Work comm::PlannedCalls::broadcast(ProcessGroup& group, at::Tensor& tensor, int root, const CallOptions& options) {
  auto plan = group.impl_->broadcast(tensor, root);
  plan.is_signed = false;
  return group.impl_->start(std::move(plan), options);
}

void comm::PlannedCalls::go_on_alone(ProcessGroup& group) noexcept { group.impl_->session->go_on_alone(); }

void comm::PlannedCalls::name_buckets(ProcessGroup& group, std::vector<BucketNames> buckets) {
  group.impl_->session->name_buckets(std::move(buckets));
}

bool comm::PlannedCalls::has_means(const ProcessGroup& group) {
  const auto& engine = group.impl_->engine;
  return engine && engine->reductions(group.size()).of_means;
}

bool comm::PlannedCalls::is_capturing(const ProcessGroup& group) {
  const auto& engine = group.impl_->engine;
  return engine && engine->is_capturing(group.device());
}

comm::PlanCounts& comm::PlannedCalls::plans(ProcessGroup& group) { return group.impl_->plans; }

Work ProcessGroup::reduce_async(at::Tensor& tensor, int root, ReduceOp op, const CallOptions& options) {
  comm::require_writable(tensor, device(), "reduce");
  comm::require_root(root, size(), "reduce");
  // Gloo uses the other ranks' memory as scratch.
  const auto way = impl_->route(tensor);
  auto wire =
      rank() == root ? comm::wire_for_reduction(tensor, op, way.reductions) : wire_of_copy(tensor, op, way.reductions);
  c10d::ReduceOptions details;
  details.rootRank = root;
  details.reduceOp = comm::to_c10d(comm::operation_on_wire(tensor.scalar_type(), op, way.reductions));
  Plan plan{signature_of_reduction(Operation::reduce, tensor, op)};
  plan.signature.root = root;
  plan.stream = way.stream;
  plan.begin = [backend = way.backend, details, flat = wire.tensor](const Signatures&) {
    if (flat.numel() == 0) return Pending();
    std::vector<at::Tensor> tensors{flat};
    return backend->reduce(tensors, details);
  };
  plan.reads_signatures = false;
  if (rank() == root) plan.finish = std::move(wire.finish);
  return impl_->start(std::move(plan), options);
}

Work ProcessGroup::reduce_scatter_async(at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                        const CallOptions& options) {
  comm::require_writable(output, device(), "reduce_scatter");
  comm::require_dense(input, device(), "reduce_scatter");
  auto expected = output.sizes().vec();
  if (expected.empty()) throw std::logic_error("reduce_scatter: the output needs a first dimension");
  expected[0] *= size();
  if (input.sizes() != at::IntArrayRef(expected) || input.scalar_type() != output.scalar_type() ||
      input.device() != output.device())
    throw std::logic_error("reduce_scatter: the input must be of the output's dtype and device and " +
                           std::to_string(size()) + " times its first dimension: input " +
                           comm::Signature(Operation::reduce_scatter, input).amount() + ", output " +
                           comm::Signature(Operation::reduce_scatter, output).amount());
  // All ranks get all sums, and each keeps its part: Gloo's own way, and the same bits as all_reduce.
  const at::NoGradGuard no_grad;
  auto sums = input.detach().clone(at::MemoryFormat::Contiguous);
  auto part = sums.narrow(0, impl_->environment.rank * output.size(0), output.size(0));
  const auto copy_part = [part, target = output.detach()] {
    const at::NoGradGuard guard;
    target.copy_(part);
  };
  auto plan = impl_->all_reduce(sums, op);
  plan.signature = signature_of_reduction(Operation::reduce_scatter, input, op);
  plan.finish = [wire_finish = std::move(plan.finish), copy_part] {
    if (wire_finish) wire_finish();
    copy_part();
  };
  plan.alone = copy_part;
  return impl_->start(std::move(plan), options);
}

Work ProcessGroup::barrier_async(const CallOptions& options) {
  Plan plan{Signature(Operation::barrier)};  // the signatures are the barrier
  plan.reads_signatures = false;
  return impl_->start(std::move(plan), options);
}

}  // namespace ddp
