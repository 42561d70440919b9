#include "comm/bucket_legend.hpp"

#include <chrono>
#include <memory>
#include <utility>

namespace ddp::comm {
namespace {

constexpr std::chrono::seconds kReading{1};  // of one plan, into a file

}  // namespace

BucketLegend::~BucketLegend() {
  for (std::size_t i = 0; i < kPlans; ++i) drop(i);
}

void BucketLegend::add(NamedPlan plan) {
  auto added = std::make_unique<const NamedPlan>(std::move(plan));
  const std::lock_guard lock(adding_);
  const auto place = added_ % kPlans;
  drop(place);
  plans_[place].put(added.release());
  ++added_;
}

// What is still read stays in memory for good.
void BucketLegend::drop(std::size_t place) {
  const auto taken = plans_[place].take(kReading);
  if (taken.is_unread) delete taken.object;
}

}  // namespace ddp::comm
