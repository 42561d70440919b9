#pragma once
/// shm_work.hpp: one call over shared memory, as c10d knows it.

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "comm/progress.hpp"
#include "comm/shm/transfers.hpp"

namespace ddp::comm {

/// Threads: the c10d::Work's members are safe; the rest is the engine's.
class ShmWork final : public c10d::Work {
 public:
  using OnLabels = std::function<void(const std::vector<shm::Label>&)>;

  /// `tensors` are kept until the call has ended. `engine` is who has to bring it to its end.
  ShmWork(std::shared_ptr<Progress> engine, shm::Call made, std::vector<at::Tensor> tensors, c10d::OpType operation,
          OnLabels on_labels)
      : c10d::Work(-1, operation),
        call(std::move(made)),
        engine_(std::move(engine)),
        tensors_(std::move(tensors)),
        on_labels_(std::move(on_labels)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {}

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  /// Errors: std::runtime_error where the call cannot end any more or in time.
  bool wait(std::chrono::milliseconds timeout) override;

  /// The call has ended; it tells how.
  void end();

  shm::Call call;

 private:
  const std::shared_ptr<Progress> engine_;
  std::vector<at::Tensor> tensors_;
  OnLabels on_labels_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace ddp::comm
