#include "ddp/smoke_test.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <system_error>

#include "base/formatted.hpp"
#include "ddp/distributed_metric.hpp"
#include "ddp/distributed_sampler.hpp"
#include "train/smoke_test/comparison.hpp"
#include "train/smoke_test/plan.hpp"
#include "train/smoke_test/request.hpp"
#include "train/smoke_test/trial.hpp"
#include "train/synced_mean.hpp"

namespace ddp {
namespace {

using namespace smoke;

// Less is no fall: rounding and the order of the samples move the loss, too.
constexpr double kFall = 1e-3;

// Rank 0's, gone with it.
class Folder {
 public:
  explicit Folder(ProcessGroup& group) : is_own_(group.rank() == 0) {
    std::string path;
    if (is_own_) {
      path = (std::filesystem::temp_directory_path() / "ddp-check-XXXXXX").string();
      if (::mkdtemp(path.data()) == nullptr)
        throw std::system_error(errno, std::generic_category(), "ddp: smoke_test: no folder " + path);
    }
    path_ = group.broadcast_bytes(path);
  }
  ~Folder() {
    std::error_code ignored;
    if (is_own_) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path file() const { return path_ / "check.pt"; }

 private:
  bool is_own_;
  std::filesystem::path path_;
};

bool all_agree(bool own, ProcessGroup& group) {
  auto flag = at::tensor({own ? 1 : 0}, at::kInt);
  group.all_reduce(flag, ReduceOp::min, {.label = "verdict"});
  return flag.item<int>() == 1;
}

// NaN is equal to itself here.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.contiguous().view({-1}).view(at::kByte), b.contiguous().view({-1}).view(at::kByte));
}

SmokeVerdict replicas_are_equal(const std::vector<at::Tensor>& weights, ProcessGroup& group) {
  bool same = true;
  for (const auto& tensor : weights) {
    auto of_rank_0 = tensor.clone();
    group.broadcast(of_rank_0, 0, {.label = "weights of rank 0"});
    same &= same_bits(of_rank_0, tensor);
  }
  same = all_agree(same, group);
  return {same, same ? "the weights are equal to the bit on all ranks" : "the weights are NOT equal on all ranks"};
}

SmokeVerdict loss_falls(const std::vector<double>& losses) {
  for (std::size_t step = 0; step < losses.size(); ++step)
    if (!std::isfinite(losses[step])) return {false, formatted("the loss is {} in step {}", losses[step], step)};
  const auto part = static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, losses.size() / 4));
  const auto first = std::accumulate(losses.begin(), losses.begin() + part, 0.0) / static_cast<double>(part);
  const auto last = std::accumulate(losses.end() - part, losses.end(), 0.0) / static_cast<double>(part);
  const bool falls = first - last > kFall * std::abs(first);
  return {falls, formatted("the loss {}: {:.4f} in the first {} steps, {:.4f} in the last",
                           falls ? "falls" : "does NOT fall", first, part, last)};
}

SmokeVerdict goes_on(const std::vector<at::Tensor>& straight, const std::vector<at::Tensor>& resumed, std::size_t step,
                     ProcessGroup& group) {
  const bool same =
      all_agree(std::equal(straight.begin(), straight.end(), resumed.begin(), resumed.end(), same_bits), group);
  return {same, formatted("a new model that goes on from a checkpoint of step {} ends with {}", step,
                          same ? "the same bits" : "OTHER weights")};
}

struct Evaluation {
  double loss = 0;
  at::Tensor counted;  // indices of the samples, sorted
};

// With the weights and buffers of rank 0 on all ranks: the last step has left to each its own running means.
Evaluation evaluate(Trial& trial, const Plan& plan, ProcessGroup& group) {
  auto tensors = trial.tensors();
  for (auto& tensor : tensors) group.broadcast(tensor, 0, {.label = "weights of rank 0"});
  trial.set_tensors(tensors);
  const DistributedSampler sampler(plan.samples, group, {.shuffle = false, .pad = false});
  const auto own = sampler.indices();
  MeanLoss mean_loss;
  for (const auto& [loss, samples] : trial.evaluate(own, plan.batch)) mean_loss.update(loss, samples);
  const std::vector<std::int64_t> indices(own.begin(), own.end());
  const auto counted = at::cat(group.all_gather(at::tensor(indices, at::kLong).to(group.device()))).to(at::kCPU);
  return {mean_loss.compute(group), std::get<0>(counted.sort())};
}

SmokeVerdict judged(const Evaluation& of_ranks, const Plan& plan, const Comparison& comparison) {
  std::vector<Samples> portions;
  for (int rank = 0; rank < plan.ranks; ++rank)
    portions.push_back(
        DistributedSampler(plan.samples, {.num_replicas = plan.ranks, .rank = rank, .shuffle = false, .pad = false})
            .indices());
  const bool once = at::equal(of_ranks.counted, at::arange(static_cast<std::int64_t>(plan.samples), at::kLong));
  return comparison.evaluation(of_ranks.loss, portions, once);
}

// What the ranks do together.
struct Together {
  RanksRun run;
  Evaluation evaluation;
  std::vector<SmokeVerdict> verdicts;
};

Together train_together(const SmokeSubject& subject, const std::shared_ptr<ProcessGroup>& group,
                        const SmokeTestOptions& options, const Plan& plan) {
  const Folder folder(*group);
  const auto steps = plan.steps.size(), middle = steps / 2;
  Together together;
  auto straight = std::make_unique<Trial>(subject, group, options);
  together.run.start = straight->tensors();
  straight->train_as_rank(plan, 0, middle, *group);
  straight->save(folder.file(), middle);
  straight->train_as_rank(plan, middle, steps, *group);
  together.run.losses = straight->losses();
  together.run.end = straight->tensors();
  together.verdicts.push_back(replicas_are_equal(straight->weights(), *group));
  together.verdicts.push_back(loss_falls(together.run.losses));
  straight.reset();  // two wrappers of one group would leave in an order that ranks may not share

  auto other_seed = options;
  ++other_seed.seed;
  Trial resumed(subject, group, other_seed);
  resumed.load(folder.file());
  resumed.set_seed(options.seed);
  resumed.train_as_rank(plan, middle, steps, *group);
  together.verdicts.push_back(goes_on(together.run.end, resumed.tensors(), middle, *group));
  resumed.set_tensors(together.run.end);
  together.evaluation = evaluate(resumed, plan, *group);
  return together;
}

// What rank 0 does meanwhile of the others' waiting.
void compare(const SmokeSubject& subject, const SmokeTestOptions& options, const Plan& plan, Together& together,
             SmokeReport& report) {
  const Comparison comparison(subject, options, plan, together.run);
  report.ranks = together.run.losses;
  if (!options.sync_batch_norm) report.verdicts.push_back(comparison.in_turn());  // it has no whole batch to look at
  report.verdicts.push_back(comparison.as_a_whole(report.one_process));
  report.verdicts.insert(report.verdicts.end(), together.verdicts.begin(), together.verdicts.end());
  report.verdicts.push_back(judged(together.evaluation, plan, comparison));
  report.passed = std::all_of(report.verdicts.begin(), report.verdicts.end(),
                              [](const SmokeVerdict& verdict) { return verdict.passed; });
}

}  // namespace

void detail::require_plain_batch_norms(torch::nn::Module& module) {
  for (const auto& part : module.modules())
    if (is_synchronised(*part))
      throw std::invalid_argument(
          "ddp: smoke_test: make_model() gives a model whose batch norms are synchronised; leave that to the option "
          "sync_batch_norm");
}

SmokeReport smoke_test(const SmokeSubject& subject, const std::shared_ptr<ProcessGroup>& group,
                       const SmokeTestOptions& options) {
  const Running running;
  const auto plan =
      make_plan(group->size(), std::min(options.samples, subject.dataset_size), options.steps, options.seed);
  auto together = train_together(subject, group, options, plan);
  SmokeReport report;
  group->rank0_section([&] { compare(subject, options, plan, together, report); }, {.label = "smoke test"});
  report.passed = group->broadcast_bytes(report.passed ? "1" : "0") == "1";
  return report;
}

std::string SmokeReport::text() const {
  std::string text = formatted("{:>6} {:>14} {:>14} {:>12}\n", "step", "one process", "all ranks", "relative gap");
  for (std::size_t step = 0; step < ranks.size(); ++step)
    text += formatted("{:>6} {:>14.6f} {:>14.6f} {:>12.1e}\n", step, one_process[step], ranks[step],
                      gap(ranks[step], one_process[step]));
  for (const auto& verdict : verdicts) text += (verdict.passed ? "ok    " : "FAIL  ") + verdict.text + '\n';
  const auto failed = std::count_if(verdicts.begin(), verdicts.end(), [](const auto& one) { return !one.passed; });
  return text + (failed == 0 ? "passed\n" : formatted("{} of {} FAILED\n", failed, verdicts.size()));
}

}  // namespace ddp
