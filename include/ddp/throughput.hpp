#pragma once
/// throughput.hpp: how many samples a second the ranks train on together, and how well that scales.
///
///     const double alone = ddp::throughput_alone(*group, [&] { return train_a_batch(); });   // before the training
///     ddp::Throughput throughput;
///     for (auto& batch : *loader) { ...; throughput.add(batch.data.size(0)); }
///     { auto pause = throughput.pause(); evaluate(); }
///     const double all = throughput.compute(*group);
///     ddp::log::info("{:.0f} samples/s, efficiency {:.2f}", all, ddp::scaling_efficiency(all, alone, *group));

#include <chrono>
#include <cstdint>
#include <functional>

namespace ddp {

class ProcessGroup;

/// A clock that runs from construction on, and a count of samples. Threads: one.
class Throughput {
 public:
  using Seconds = std::chrono::duration<double>;

  /// While it lives, the clock stands: for an evaluation, a checkpoint. Within another it does nothing.
  /// Lifetime: ends before the meter.
  class [[nodiscard]] Pause {
   public:
    explicit Pause(Throughput& meter);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Throughput& meter_;
  };

  void add(std::int64_t samples) { samples_ += samples; }
  Pause pause() { return Pause(*this); }
  /// Forgets samples and time.
  void reset();

  /// Collective. The samples of all ranks for each second of the rank that took longest; 0 before any time has passed.
  /// The same on every rank. On an accelerator it waits for this rank's device first.
  double compute(ProcessGroup& group) const;
  std::int64_t samples() const { return samples_; }  ///< of this rank
  Seconds elapsed() const;                           ///< of this rank, without pauses

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t samples_ = 0;
  Seconds before_{0};  ///< until the last pause began
  Clock::time_point since_ = Clock::now();
  int pauses_ = 0;  ///< that live
};

struct ThroughputAloneOptions {
  int warmup = 3;  ///< steps before the measured ones, in which memory is taken for the first time
  int steps = 20;
};

/// Collective. Samples a second of one rank without the others: rank 0 alone takes steps while they wait, with the same
/// number of threads as later. `step` trains on a batch, without a collective, and returns its samples; it is called on
/// rank 0 alone, and is to train a model of its own, as the ranks' replicas must stay equal. The result is the same on
/// every rank. Errors: what `step` throws, as ProcessGroup::rank0_section() has it.
double throughput_alone(ProcessGroup& group, const std::function<std::int64_t()>& step,
                        const ThroughputAloneOptions& options = {});

/// The share that the group reaches of size() times one rank's throughput: 1 where ranks cost one another nothing.
double scaling_efficiency(double all, double alone, const ProcessGroup& group);

}  // namespace ddp
