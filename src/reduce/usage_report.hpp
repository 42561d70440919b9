#pragma once
/// usage_report.hpp: tells the user of find_unused_parameters what the option finds and what it costs.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/control_record.hpp"
#include "reduce/parameter.hpp"

namespace ddp {

/// After kSteps steps, once, on rank 0: that the option can go, or which parameters no rank has ever used.
/// Threads: one at a time; the reducer's lock covers it.
class UsageReport {
 public:
  /// Long enough for branches that are taken now and then; short enough to be read while the run is young.
  static constexpr std::int64_t kSteps = 100;

  explicit UsageReport(std::size_t parameters) : used_(parameters, false) {}

  void add_search(std::chrono::nanoseconds time) { search_time_ += time; }
  /// Flag i of `record`: some rank used parameter i in this step. `found_unused`: some rank did not use all.
  void end_step(const std::vector<Parameter>& parameters, const ControlRecord& record, bool found_unused);

 private:
  void tell(const std::vector<Parameter>& parameters) const;

  std::vector<bool> used_;
  bool found_unused_ = false;
  std::int64_t steps_ = 0;
  std::chrono::nanoseconds search_time_{};
};

}  // namespace ddp
