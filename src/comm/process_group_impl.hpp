#pragma once
/// process_group_impl.hpp: what a ProcessGroup is made of, and how a call goes through it:
/// check the arguments -> enter (number, record) -> compare signatures -> launch on the backend -> Work.

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/backend_shm.hpp"
#include "comm/call_line.hpp"
#include "comm/call_plan.hpp"
#include "comm/device_backend.hpp"
#include "comm/device_side.hpp"
#include "comm/session.hpp"
#include "comm/signature.hpp"
#include "comm/wire.hpp"
#include "comm/work_state.hpp"
#include "ddp/process_group.hpp"

namespace ddp {

struct ProcessGroup::Impl {
  using Pending = comm::CallLine::Pending;
  using Signatures = std::vector<comm::Signature>;

  /// One collective, as the backend is to see it.
  ///
  /// The functions run later and on other threads: they hold what they use, and the backend as a plain
  /// pointer (it lives until every call has ended, or for ever).
  struct Plan {
    comm::Signature signature;
    /// Starts a transfer that `begin` needs the result of. Empty as a rule.
    std::function<Pending(const Signatures&)> prepare = {};
    /// Starts the data's transfer once the ranks' signatures agree; null: there is nothing to move.
    std::function<Pending(const Signatures&)> begin = {};
    /// False: `begin` needs no signature of another rank, so that they may be compared within its transfer.
    bool reads_signatures = true;
    /// Once, in the wait() that succeeds: brings what arrived to where it belongs. May be empty.
    std::function<void()> finish = {};
    /// What replaces all of it in a world of one. May be empty.
    std::function<void()> alone = {};
    /// False: the ranks have agreed on this call before, and no signatures are exchanged.
    bool is_signed = true;
    /// Of a call on a device: that of the caller, behind which `begin` works; its transfer ends on the device.
    std::optional<c10::Stream> stream = {};
  };

  Environment environment;  ///< its rank and world size are the group's, not the world's
  std::chrono::milliseconds timeout;
  std::string host_backend;  ///< what is wanted for tensors in memory; of the groups made from this one, too
  std::string backend_name;  ///< what it came to, or the device's engine
  NcclOptions nccl;
  at::Device device = at::kCPU;
  std::shared_ptr<const comm::DeviceBackend> engine;  ///< of the device; null on the CPU
  std::shared_ptr<comm::Session> session;
  c10::intrusive_ptr<c10d::Backend> owned_backend;  ///< until close()
  c10d::Backend* backend = nullptr;               ///< null in a world of one; who is in a call may use it, see Calling
  std::shared_ptr<comm::DeviceSide> device_side;  ///< for tensors on the device; null on the CPU; until close()
  comm::ShmBackend* shm = nullptr;                ///< the same where it is this one
  int exceptions_at_birth = 0;

  std::mutex order;  ///< held while a call is numbered and lines up, so that both orders are the same
  std::shared_ptr<comm::CallLine> line = std::make_shared<comm::CallLine>();
  std::uint64_t last_roll_call = 0;  ///< under `order`: number of the last monitored barrier
  std::atomic<bool> closed{false};
  std::atomic<pid_t> working_for_all{0};  ///< rank 0's thread in rank0_section()

  std::mutex message_order;                 ///< the same for messages
  std::map<int, std::int64_t> sent, taken;  ///< messages to and from each rank

  int sub_groups_made = 0;
  comm::PlanCounts plans;
  std::shared_ptr<ProcessGroup> side_group;  ///< once it was asked for; see PlannedCalls

  int size() const { return environment.world_size; }
  /// Where a tensor goes.
  struct Route {
    c10d::Backend* backend;
    comm::Reductions reductions;
    std::optional<c10::Stream> stream;  ///< the current one, for tensors on a device
  };
  Route route(const at::Tensor& tensor) const;
  /// Of tensors in memory. Gloo refuses int16, and would round a half type with each rank's part.
  comm::Reductions reductions() const {
    return {.ranks = size(), .of_half_types = shm != nullptr, .of_int16 = shm != nullptr};
  }
  bool is_alone() const { return !backend; }

  /// Numbers the call and has it line up.
  Work start(Plan plan, const CallOptions& options);
  /// The same, and waits for it.
  void run_to_end(Plan plan, const CallOptions& options);
  /// Throws when the group is closed.
  void require_open(std::string_view operation) const;
  /// Throws on the thread that is in rank0_section().
  void require_all_ranks(std::string_view operation) const;
  /// Under `order`: numbers a call. Throws when the group is closed or broken, or a rank has left.
  void enter(comm::Call& call, comm::Start start = comm::Start::later);
  /// Collective. A barrier over shared memory for a caller that waits, without the ceremony that others need. False: it
  /// needs that, and nothing was done.
  bool barrier_at_once(const CallOptions& options);
  /// The same for a reduction in place that needs nothing but its bytes.
  bool all_reduce_at_once(at::Tensor& tensor, ReduceOp op, const CallOptions& options);

  /// Of the device's engine, uint8 [bytes]; undefined where it has none.
  at::Tensor registered_memory(std::int64_t bytes) const;

  Plan all_reduce(at::Tensor& tensor, ReduceOp op);
  Plan broadcast(at::Tensor& tensor, int root);

  /// One side of a message between two ranks.
  struct MessagePlan {
    bool sends = false;
    int peer = 0;
    comm::Signature signature;
    std::shared_ptr<at::Tensor> bytes;  ///< sent, or received into; undefined: as many as come
    std::function<void()> finish;
  };
  Work start_message(MessagePlan plan, const CallOptions& options);

  /// Collective. Makes the backends, with `part` as the name of that in errors. `parent` is the group that this one is
  /// made from, whose other ranks call help_to_split() meanwhile.
  void connect(std::string_view part, const Impl* parent = nullptr, const std::vector<int>& ranks = {});
  /// Collective over this group, see connect(): of a rank that is not among `ranks`.
  void help_to_split(std::string_view part, const std::vector<int>& ranks) const;

  /// Leaves; `farewell` is how long rank 0 stays for the others.
  void close(std::chrono::milliseconds drain, std::chrono::milliseconds farewell) noexcept;

 private:
  bool run_at_once(comm::Call&& call, comm::shm::Call&& shared, const at::Tensor& tensor, const CallOptions& options);
  std::vector<comm::CallLine::Stage> stages_of(Plan plan, const comm::Call& call);
  comm::ShmEngine::OnLabels comparison_of(const comm::Call& call) const;
  std::vector<comm::CallLine::Stage> signed_stages_of(Plan plan, const comm::Call& call);
  void release_backend() noexcept;
  comm::BackendSetup setup() const;
};

namespace comm {

/// While one lives, its thread waits for each call as soon as it has made it: nobody has to be woken for that.
class WaitsHere {
 public:
  WaitsHere() { ++depth_; }
  ~WaitsHere() { --depth_; }
  WaitsHere(const WaitsHere&) = delete;
  WaitsHere& operator=(const WaitsHere&) = delete;
  static bool lives() { return depth_ > 0; }

 private:
  inline static thread_local int depth_ = 0;
};

/// Errors: std::logic_error when `root` is no rank of the group.
void require_root(int root, int size, const char* operation);
/// The backend's word for it.
c10d::ReduceOp to_c10d(ReduceOp op);
/// `count` rows of one piece of memory on `device`, uint8 [bytes] each.
std::vector<at::Tensor> buffers(int count, std::int64_t bytes, at::Device device = at::kCPU);
/// `bytes` with zeros up to `length`.
at::Tensor padded(const at::Tensor& bytes, std::int64_t length);
/// The first `length` bytes as a string.
std::string text_in(const at::Tensor& bytes, std::int64_t length);
/// One round of equal-sized tensors from every rank, in rank order.
CallLine::Pending gather_all(c10d::Backend& backend, std::vector<at::Tensor>& outputs, at::Tensor input);

}  // namespace comm
}  // namespace ddp
