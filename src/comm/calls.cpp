// How a collective gets from its arguments to the backend, whatever it does.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <stdexcept>

#include "base/thread_number.hpp"
#include "comm/process_group_impl.hpp"
#include "comm/sessions.hpp"
#include "ddp/log.hpp"

namespace ddp {

ProcessGroup::Impl::Route ProcessGroup::Impl::route(const at::Tensor& tensor) const {
  if (tensor.is_cpu() || !device_side) return {backend, reductions(), std::nullopt};
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return {&device_side->backend(), engine->reductions(size()), stream};
}

void ProcessGroup::Impl::require_open(std::string_view operation) const {
  if (closed) throw std::logic_error(std::string(operation) + ": the process group has been shut down");
}

void ProcessGroup::Impl::require_all_ranks(std::string_view operation) const {
  if (working_for_all != 0 && working_for_all == own_thread_number())
    throw std::logic_error(std::string(operation) +
                           ": inside rank0_section(), where only rank 0 is, it would never end");
}

void ProcessGroup::Impl::enter(comm::Call& call, comm::Start start) {
  auto& recorder = session->recorder();
  if (closed) require_open(comm::name_of(call.signature.called()));
  require_all_ranks(comm::name_of(call.signature.called()));
  if (!session->health().is_clear()) {
    call.number = recorder.entered() + 1;
    call.step = recorder.step();
    if (const auto obstacle = session->health().obstacle(call.number)) session->break_and_raise(*obstacle, call.name());
  }
  recorder.enter(call, start);
  if (log::enabled(log::Subsystem::coll)) log::detail(log::Subsystem::coll, "{}", call.description());
}

Work ProcessGroup::Impl::start(Plan plan, const CallOptions& options) {
  comm::Call call{plan.signature, options.label, plan.is_signed ? comm::Meeting::signatures : comm::Meeting::plan};
  const comm::Session::Calling calling(*session);
  const std::lock_guard lock(order);
  enter(call);
  if (is_alone()) {
    session->recorder().complete(call);
    if (plan.alone) plan.alone();
    return {};
  }
  auto state = std::make_shared<Work::State>(session, call, options.timeout.value_or(timeout));
  state->set_finish(std::move(plan.finish));
  const bool may_be_left = plan.is_signed && !comm::WaitsHere::lives();
  comm::EndOnDevice end;
  if (plan.stream) end = {device_side->watch(), plan.stream, engine->is_capturing(device)};
  line->submit(state, stages_of(std::move(plan), call), std::move(end));
  if (may_be_left) session->go_on_alone();
  return Work(std::move(state));
}

bool ProcessGroup::Impl::barrier_at_once(const CallOptions& options) {
  const comm::Session::Calling calling(*session);
  if (closed || !shm) return false;
  return run_at_once({comm::Signature(comm::Operation::barrier), options.label}, {}, {}, options);
}

bool ProcessGroup::Impl::run_at_once(comm::Call&& call, comm::shm::Call&& shared, const at::Tensor& tensor,
                                     const CallOptions& options) {
  std::unique_lock lock(order);
  if (!line->is_idle()) return false;
  enter(call, comm::Start::at_once);
  auto& shared_engine = *shm->engine();
  call.signature.number = static_cast<std::int64_t>(call.number);
  shared.label = comm::label_of(call.signature);
  const auto limit = options.timeout.value_or(timeout);
  const bool is_entered = shared_engine.enter_at_once(shared);
  auto pending = is_entered
                     ? Pending()
                     : shared_engine.submit(std::move(shared), {tensor}, c10d::OpType::UNKNOWN, comparison_of(call));
  lock.unlock();  // its place in the order is fixed
  if (is_entered)
    pending =
        shared_engine.run_entered(shared, tensor, comm::deadline_of(call, limit), [&] { return comparison_of(call); });
  if (!pending) {
    session->recorder().complete(call);
    if (shared.has_differed) comparison_of(call)(shared.labels);
    return true;
  }
  const auto state = std::make_shared<Work::State>(session, call, limit);
  comm::CallLine::follow(state, *pending);
  state->wait();
  return true;
}

void ProcessGroup::Impl::run_to_end(Plan plan, const CallOptions& options) {
  const comm::WaitsHere here;
  start(std::move(plan), options).wait();
}

namespace {

using Plan = ProcessGroup::Impl::Plan;
using Pending = ProcessGroup::Impl::Pending;
using Signatures = ProcessGroup::Impl::Signatures;
using Stages = std::vector<comm::CallLine::Stage>;

// What follows once the ranks mean the same call.
void add_transfers(Stages& stages, Plan plan, const std::shared_ptr<Signatures>& signatures,
                   const ProcessGroup::Impl& group, const comm::Call& call) {
  if (plan.prepare) stages.push_back([signatures, prepare = std::move(plan.prepare)] { return prepare(*signatures); });
  if (!plan.begin) return;
  stages.push_back(
      [signatures, session = group.session, ticket = call.ticket, begin = std::move(plan.begin), stream = plan.stream] {
        if (stream && comm::is_leaving()) throw std::runtime_error("the process ends");
        const c10::OptionalStreamGuard behind_the_caller(stream);  // also on a thread of the backend
        session->recorder().start(ticket);
        return begin(*signatures);
      });
}

}  // namespace

comm::ShmEngine::OnLabels ProcessGroup::Impl::comparison_of(const comm::Call& call) const {
  return [session = session, call](const std::vector<comm::shm::Label>& labels) {
    comm::require_agreement(comm::signatures_in(labels), session->ranks(), session->origin(), call.name());
  };
}

Stages ProcessGroup::Impl::stages_of(Plan plan, const comm::Call& call) {
  if (plan.is_signed && shm) return signed_stages_of(std::move(plan), call);
  Stages stages;
  const auto signatures = std::make_shared<Signatures>();
  if (plan.is_signed) {
    plan.signature.number = static_cast<std::int64_t>(call.number);
    const auto received = std::make_shared<std::vector<at::Tensor>>(
        comm::buffers(size(), static_cast<std::int64_t>(sizeof(comm::Signature))));
    stages.push_back([backend = backend, received, own = comm::copied_bytes(plan.signature)] {
      return comm::gather_all(*backend, *received, own);
    });
    const auto compare = [received, signatures, session = session, call] {
      for (const auto& bytes : *received) signatures->push_back(comm::signature_in(bytes));
      comm::require_agreement(*signatures, session->ranks(), session->origin(), call.name());
      return Pending();
    };
    stages.push_back(compare);
  }
  add_transfers(stages, std::move(plan), signatures, *this, call);
  return stages;
}

// Signatures travel on the calls themselves.
Stages ProcessGroup::Impl::signed_stages_of(Plan plan, const comm::Call& call) {
  Stages stages;
  const auto signatures = std::make_shared<Signatures>();
  plan.signature.number = static_cast<std::int64_t>(call.number);
  comm::ShmBackend::Signing signing{comm::label_of(plan.signature), false, comparison_of(call)};
  if (!plan.prepare && !plan.reads_signatures && !plan.stream) {
    stages.push_back(
        [shm = shm, signing, signatures, session = session, ticket = call.ticket, begin = std::move(plan.begin)] {
          session->recorder().start(ticket);
          return shm->begin_signed(signing, begin ? [&] { return begin(*signatures); } : std::function<Pending()>());
        });
    return stages;
  }
  signing.wants_labels = true;
  signing.on_labels = [signatures, compare = signing.on_labels](const std::vector<comm::shm::Label>& labels) {
    compare(labels);
    *signatures = comm::signatures_in(labels);
  };
  stages.push_back([shm = shm, signing] { return shm->begin_signed(signing, nullptr); });
  add_transfers(stages, std::move(plan), signatures, *this, call);
  return stages;
}

namespace comm {

void require_root(int root, int size, const char* operation) {
  if (root >= 0 && root < size) return;
  throw std::logic_error(std::string(operation) + ": root " + std::to_string(root) + " is no rank of " +
                         std::to_string(size));
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
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

std::vector<at::Tensor> buffers(int count, std::int64_t bytes, at::Device device) {
  auto memory = at::empty({count, bytes}, at::device(device).dtype(at::kByte));
  std::vector<at::Tensor> parts;
  for (int i = 0; i < count; ++i) parts.push_back(memory.select(0, i));
  return parts;
}

at::Tensor padded(const at::Tensor& bytes, std::int64_t length) {
  if (bytes.numel() == length) return bytes;
  auto result = at::zeros({length}, bytes.options());
  result.narrow(0, 0, bytes.numel()).copy_(bytes);
  return result;
}

std::string text_in(const at::Tensor& bytes, std::int64_t length) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(length)};
}

CallLine::Pending gather_all(c10d::Backend& backend, std::vector<at::Tensor>& outputs, at::Tensor input) {
  std::vector<std::vector<at::Tensor>> lists{outputs};
  std::vector<at::Tensor> inputs{std::move(input)};
  return backend.allgather(lists, inputs);
}

}  // namespace comm
}  // namespace ddp
