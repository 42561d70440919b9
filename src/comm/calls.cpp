// How a collective gets from its arguments to the backend, whatever it does.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>

#include "comm/process_group_impl.hpp"
#include "ddp/log.hpp"

namespace ddp {

void ProcessGroup::Impl::require_open(std::string_view operation) const {
  if (closed) throw std::logic_error(std::string(operation) + ": the process group has been shut down");
}

comm::Call ProcessGroup::Impl::enter(const char* operation, const std::string& amount, const CallOptions& options,
                                     comm::Meeting meeting) {
  require_open(operation);
  const auto next = session->record().next(operation, amount, options.label);
  if (const auto obstacle = session->health().obstacle(next.number)) session->break_and_raise(*obstacle, next.name());
  auto call = session->record().enter(operation, amount, options.label, meeting);
  log::detail(log::Subsystem::coll, "{}", call.description());
  return call;
}

Work ProcessGroup::Impl::start(Plan plan, const CallOptions& options) {
  const auto* const operation = comm::name_of(static_cast<comm::Operation>(plan.signature.operation));
  const std::lock_guard lock(order);
  const auto call =
      enter(operation, plan.amount, options, plan.is_signed ? comm::Meeting::signatures : comm::Meeting::plan);
  if (is_alone()) {
    session->record().complete(call);
    if (plan.alone) plan.alone();
    return {};
  }
  auto state = std::make_shared<Work::State>(session, call, options.timeout.value_or(timeout));
  state->set_finish(std::move(plan.finish));
  const bool may_be_left = plan.is_signed && !comm::WaitsHere::lives();
  line->submit(state, stages_of(std::move(plan), call));
  if (may_be_left) session->go_on_alone();
  return Work(std::move(state));
}

void ProcessGroup::Impl::run_to_end(Plan plan, const CallOptions& options) {
  const comm::WaitsHere here;
  start(std::move(plan), options).wait();
}

std::vector<comm::CallLine::Stage> ProcessGroup::Impl::stages_of(Plan plan, const comm::Call& call) {
  std::vector<comm::CallLine::Stage> stages;
  const auto signatures = std::make_shared<Signatures>();
  if (plan.is_signed) {
    plan.signature.number = static_cast<std::int64_t>(call.number);
    const auto received = std::make_shared<std::vector<at::Tensor>>(
        comm::buffers(size(), static_cast<std::int64_t>(sizeof(comm::Signature))));
    stages.push_back([backend = backend.get(), received, own = comm::copied_bytes(plan.signature)] {
      return comm::gather_all(*backend, *received, own);
    });
    const auto compare = [received, signatures, ranks = session->ranks(), origin = session->origin(),
                          part = call.name()] {
      for (const auto& bytes : *received) signatures->push_back(comm::signature_in(bytes));
      comm::require_agreement(*signatures, ranks, origin, part);
      return Pending();
    };
    stages.push_back(compare);
  }
  if (plan.prepare) stages.push_back([signatures, prepare = std::move(plan.prepare)] { return prepare(*signatures); });
  if (plan.begin) stages.push_back([signatures, begin = std::move(plan.begin)] { return begin(*signatures); });
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
