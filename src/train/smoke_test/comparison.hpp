#pragma once
/// comparison.hpp: what several ranks have come to beside what one process comes to, and why they differ.

#include <vector>

#include "ddp/smoke_test.hpp"
#include "train/smoke_test/trial.hpp"

namespace ddp::smoke {

/// A run of the ranks: where it began, its losses, where it ended.
struct RanksRun {
  std::vector<at::Tensor> start;
  std::vector<double> losses;
  std::vector<at::Tensor> end;
};

/// Trains in one process what the ranks have trained. Threads: one. Lifetime: refers to its arguments.
class Comparison {
 public:
  Comparison(const SmokeSubject& subject, const SmokeTestOptions& options, const Plan& plan, const RanksRun& ranks);

  /// One process that takes the ranks' batches in turn.
  SmokeVerdict in_turn() const;
  /// One that takes them as a whole; its losses are kept in `curve`.
  SmokeVerdict as_a_whole(std::vector<double>& curve) const;
  /// Its evaluation of the end's weights beside the mean `loss` of the ranks', each of which had its `portions` in
  /// turn; `once`: they counted each sample once.
  SmokeVerdict evaluation(double loss, const std::vector<Samples>& portions, bool once) const;

 private:
  using Train = void (Trial::*)(const Plan&, Mode);
  struct Trained {
    std::vector<double> losses;
    std::vector<at::Tensor> tensors;
  };
  Trained trained(Train train, Mode mode, const std::vector<at::Tensor>& start) const;
  bool alike(const Trained& one, const Trained& other, Train train, Mode mode) const;
  bool alike_without(Mode mode) const;
  bool is_random() const;
  SmokeVerdict explained(const std::vector<double>& curve) const;

  const SmokeSubject& subject_;
  const SmokeTestOptions& options_;
  const Plan& plan_;
  const RanksRun& ranks_;
  double epsilon_;  // of the weights
  double tolerance_;
};

/// |a - b| / (1 + |b|), infinite where one is not finite; the largest of several.
double gap(double a, double b);
double largest_gap(const std::vector<double>& a, const std::vector<double>& b);
double largest_gap(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace ddp::smoke
