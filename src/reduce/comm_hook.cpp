#include "ddp/comm_hook.hpp"

#include <ATen/core/grad_mode.h>

#include <stdexcept>
#include <utility>

#include "comm/planned_calls.hpp"
#include "comm/wire.hpp"

namespace ddp {
namespace {

class Compression : public CommHook {
 public:
  Compression(std::string name, at::ScalarType dtype) : name_(std::move(name)), dtype_(dtype) {}

  std::string name() const override { return name_; }

  std::function<void()> launch(ProcessGroup& group, GradBucket bucket) override {
    auto gradients = bucket.gradients;
    if (gradients.is_complex() || gradients.element_size() <= 2) {
      auto work = comm::PlannedCalls::all_reduce(group, gradients, {.label = bucket.label});
      return [work] { work.wait(); };
    }
    auto compressed = gradients.to(dtype_);
    auto work = comm::PlannedCalls::all_reduce(group, compressed, {.label = bucket.label + ", " + name_});
    return [work, gradients, compressed] {
      const at::NoGradGuard no_grad;
      work.wait();
      gradients.copy_(compressed);
      comm::keep_for_current_stream(compressed);
    };
  }

 private:
  std::string name_;
  at::ScalarType dtype_;
};

class NoCommunication : public CommHook {
 public:
  std::string name() const override { return "no communication"; }
  std::function<void()> launch(ProcessGroup&, GradBucket) override {
    return [] {};
  }
};

}  // namespace

std::function<void()> CommHook::stage(const c10::IValue&) {
  throw std::logic_error("the communication hook " + name() + " has no stage() for its state");
}

std::shared_ptr<CommHook> fp16_compression() { return std::make_shared<Compression>("fp16 compression", at::kHalf); }
std::shared_ptr<CommHook> bf16_compression() {
  return std::make_shared<Compression>("bf16 compression", at::kBFloat16);
}
std::shared_ptr<CommHook> no_communication() { return std::make_shared<NoCommunication>(); }

}  // namespace ddp
