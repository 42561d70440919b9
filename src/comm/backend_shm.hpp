#pragma once
/// backend_shm.hpp: a c10d::Backend over shared memory, for ranks on one host.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/backend.hpp"
#include "comm/shm_engine.hpp"

namespace ddp::comm {

/// Threads: all members are safe; collectives must be called in the same order on all ranks. Tensors: dense, of the
/// CPU; they are kept until the call has ended.
class ShmBackend final : public c10d::Backend {
 public:
  ShmBackend(std::shared_ptr<shm::Memory> memory, const BackendSetup& setup);
  ~ShmBackend() override;

  const std::string getBackendName() const override { return "shm"; }
  const std::shared_ptr<ShmEngine>& engine() const { return engine_; }
  /// Memory that reductions need not copy, zeroed: uint8 [bytes]. Where there is no more of it: ordinary memory, and a
  /// warning the first time.
  at::Tensor allocate(std::int64_t bytes);

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// What all ranks put on a call, so that they find out in it whether they mean the same one; see ShmEngine::submit().
  struct Signing {
    shm::Label label;
    bool wants_labels = false;
    ShmEngine::OnLabels on_labels;
  };
  /// Collective. What `begin` begins, signed; where it begins nothing, or is null, the ranks meet for the signing
  /// alone. Threads: one at a time begins calls.
  WorkPtr begin_signed(Signing signing, const std::function<WorkPtr()>& begin);
  /// The call of a reduction in place, not begun.
  shm::Call reduction_of(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation) const;

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  WorkPtr submit(shm::Call call, std::vector<at::Tensor> tensors, c10d::OpType type);
  WorkPtr message(c10d::OpType type, const at::Tensor& tensor, int peer, int tag);
  void warn_once(std::string_view why);

  const std::shared_ptr<ShmEngine> engine_;
  const std::function<bool(int)> has_left_;
  Signing* next_signing_ = nullptr;
  std::atomic<bool> has_warned_{false};
};

}  // namespace ddp::comm
