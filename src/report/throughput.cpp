#include "ddp/throughput.hpp"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "ddp/process_group.hpp"

namespace ddp {
namespace {

/// What the host has queued is done when this returns.
void wait_for_device(const ProcessGroup& group) {
  const auto device = group.device();
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace

Throughput::Pause::Pause(Throughput& meter) : meter_(meter) {
  if (meter_.pauses_ == 0) meter_.before_ = meter_.elapsed();
  ++meter_.pauses_;
}

Throughput::Pause::~Pause() {
  if (--meter_.pauses_ == 0) meter_.since_ = Clock::now();
}

void Throughput::reset() {
  samples_ = 0;
  before_ = Seconds{0};
  since_ = Clock::now();
}

Throughput::Seconds Throughput::elapsed() const {
  return pauses_ > 0 ? before_ : before_ + Seconds(Clock::now() - since_);
}

double Throughput::compute(ProcessGroup& group) const {
  wait_for_device(group);
  const auto own = at::tensor({static_cast<double>(samples_), elapsed().count()}, at::kDouble);
  const auto all = at::stack(group.all_gather(own, {.label = "throughput"}));
  const auto samples = all.select(1, 0).sum().item<double>(), seconds = all.select(1, 1).max().item<double>();
  return seconds > 0 ? samples / seconds : 0;
}

double throughput_alone(ProcessGroup& group, const std::function<std::int64_t()>& step,
                        const ThroughputAloneOptions& options) {
  double rate = 0;
  group.rank0_section([&] {
    for (int i = 0; i < options.warmup; ++i) step();
    wait_for_device(group);
    Throughput meter;
    for (int i = 0; i < options.steps; ++i) meter.add(step());
    wait_for_device(group);
    const auto seconds = meter.elapsed().count();
    rate = seconds > 0 ? static_cast<double>(meter.samples()) / seconds : 0;
  });
  auto shared = at::tensor({rate}, at::kDouble);
  group.broadcast(shared, 0, {.label = "throughput of rank 0 alone"});
  return shared.item<double>();
}

double scaling_efficiency(double all, double alone, const ProcessGroup& group) { return all / (alone * group.size()); }

}  // namespace ddp
