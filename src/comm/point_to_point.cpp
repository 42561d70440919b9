// Messages between two ranks. Both tell the other what they expect before the data leaves, for a
// message of another size would end the process. Gloo's messages have no futures, so that each is
// waited for on a thread of its own. Tensors of a device go through the host's memory: on a device, messages of both
// directions would wait for each other in the order of one stream.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <stdexcept>
#include <thread>

#include "comm/process_group_impl.hpp"
#include "ddp/log.hpp"

namespace ddp {

using comm::Operation;
using comm::Signature;

namespace {

using Pending = ProcessGroup::Impl::Pending;

constexpr std::int32_t kTagsPerMessage = 3;
constexpr std::int64_t kMessagesUntilTagsRepeat = 1 << 28;  // their tags stay below 2^31

enum class Way { out, in };

struct Message {
  Way way = Way::out;
  int peer = 0;  // rank in the group
  std::int32_t first_tag = 0;
  Signature own;
  std::array<int, 2> ranks{};  // the sender's and the receiver's in the world
  Origin origin;
  std::string name;
  std::shared_ptr<at::Tensor> bytes;  // undefined: as many as the sender has
};

Pending begin_transfer(c10d::Backend& backend, Way way, const at::Tensor& bytes, int peer, std::int32_t tag) {
  std::vector<at::Tensor> tensors{bytes};
  return way == Way::out ? backend.send(tensors, peer, tag) : backend.recv(tensors, peer, tag);
}

// Tags: the sender's signature, the receiver's, the data.
void transfer(c10d::Backend& backend, const Message& message) {
  const bool sends = message.way == Way::out;
  const auto own = comm::copied_bytes(message.own), other = at::empty_like(own);
  const auto tag = message.first_tag;
  const auto sent = begin_transfer(backend, Way::out, own, message.peer, tag + (sends ? 0 : 1));
  begin_transfer(backend, Way::in, other, message.peer, tag + (sends ? 1 : 0))->wait();
  sent->wait();
  const auto theirs = comm::signature_in(other);
  comm::require_agreement(sends ? std::vector{message.own, theirs} : std::vector{theirs, message.own},
                          {message.ranks.begin(), message.ranks.end()}, message.origin, message.name);
  if (!message.bytes->defined()) *message.bytes = at::empty({theirs.length()}, at::kByte);
  if (message.bytes->numel() > 0) begin_transfer(backend, message.way, *message.bytes, message.peer, tag + 2)->wait();
}

void run(c10d::Backend& backend, const Message& message, const std::shared_ptr<Work::State>& state) noexcept {
  std::exception_ptr error;
  try {
    transfer(backend, message);
  } catch (...) {
    error = std::current_exception();
  }
  state->complete(error);  // the backend may be gone afterwards
}

void require_peer(int peer, const ProcessGroup& group, const char* operation) {
  if (peer >= 0 && peer < group.size() && peer != group.rank()) return;
  throw std::logic_error(std::string(operation) + ": rank " + std::to_string(peer) + " is no other rank of " +
                         std::to_string(group.size()));
}

}  // namespace

Work ProcessGroup::Impl::start_message(MessagePlan plan, const CallOptions& options) {
  const comm::Session::Calling calling(*session);
  const std::lock_guard lock(message_order);
  require_open(plan.sends ? "send" : "recv");
  require_all_ranks(plan.sends ? "send" : "recv");
  const auto me = session->origin().rank, peer = session->ranks()[static_cast<std::size_t>(plan.peer)];
  const auto index = (plan.sends ? sent : taken)[plan.peer]++;
  comm::Call call{plan.signature, options.label};
  call.peer = peer;
  call.sends = plan.sends;
  call.message = index + 1;
  auto& health = session->health();
  if (const auto breakage = health.breakage()) session->break_and_raise(*breakage, call.name());
  if (const auto departure = health.departure(peer)) session->break_and_raise(*departure, call.name());
  session->recorder().enter(call, comm::Start::at_once);
  if (log::enabled(log::Subsystem::coll)) log::detail(log::Subsystem::coll, "{}", call.description());
  auto state = std::make_shared<Work::State>(session, call, options.timeout.value_or(timeout));
  state->set_finish(std::move(plan.finish));
  Message message{plan.sends ? Way::out : Way::in,
                  plan.peer,
                  static_cast<std::int32_t>(index % kMessagesUntilTagsRepeat) * kTagsPerMessage,
                  plan.signature,
                  plan.sends ? std::array{me, peer} : std::array{peer, me},
                  session->origin(),
                  call.name(),
                  std::move(plan.bytes)};
  try {
    std::thread([backend = backend, message, state] { run(*backend, message, state); }).detach();
  } catch (const std::system_error&) {
    state->complete(std::current_exception());
  }
  return Work(std::move(state));
}

Work ProcessGroup::send_async(const at::Tensor& tensor, int to, const CallOptions& options) {
  comm::require_dense(tensor, device(), "send");
  require_peer(to, *this, "send");
  const at::NoGradGuard no_grad;
  const auto dense = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu();
  auto bytes = std::make_shared<at::Tensor>(comm::bytes_of(dense));
  return impl_->start_message({true, to, Signature(Operation::message, tensor), std::move(bytes), {}}, options);
}

Work ProcessGroup::recv_async(at::Tensor& tensor, int from, const CallOptions& options) {
  comm::require_writable(tensor, device(), "recv");
  require_peer(from, *this, "recv");
  const auto dense =
      at::empty(tensor.sizes(), tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
  auto bytes = std::make_shared<at::Tensor>(comm::bytes_of(dense));
  const auto finish = [dense, target = tensor.detach()] {
    const at::NoGradGuard no_grad;
    target.copy_(dense);
  };
  return impl_->start_message({false, from, Signature(Operation::message, tensor), std::move(bytes), finish}, options);
}

void ProcessGroup::send_bytes(std::string_view bytes, int to, const CallOptions& options) {
  require_peer(to, *this, "send_bytes");
  auto content = std::make_shared<at::Tensor>(comm::bytes_of(bytes));
  impl_->start_message({true, to, Signature(Operation::bytes_message, bytes.size()), std::move(content), {}}, options)
      .wait();
}

std::string ProcessGroup::recv_bytes(int from, const CallOptions& options) {
  require_peer(from, *this, "recv_bytes");
  const auto content = std::make_shared<at::Tensor>();
  impl_->start_message({false, from, Signature(Operation::bytes_message, std::size_t{0}), content, {}}, options).wait();
  return comm::text_in(*content, content->numel());
}

}  // namespace ddp
