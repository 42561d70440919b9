// Trains one network with DistributedDataParallel and prints, from rank 0, one line of JSON with what a step costs.
//
//   train --model mlp|resnet|gpt  --steps N  --warmup N  --no-views  --bucket-cap-mb X
//         --static-graph  --find-unused  --overlap 0|1  --keep-memory 0|1  --no-broadcast-buffers
//         --slow-rank R  --slow-by SHARE
//         --optimizer sgd|sgd_momentum|adam|adamw  --library torch|ddp  --clip NORM  --alone
//         --step-in-backward  --flatten
//         --device D  --backend NAME  --store-file PATH  --batches N  --block N
//
// --slow-rank: rank R computes for SHARE of its own step longer before each backward, 0.2 unless told.
// --device: cuda for that of the rank, cuda:0 for one that all share. The end of a block of steps, of which each counts
// as its part of the block's time, waits for what they have queued there; a block is one step on the CPU and ten else.
// --batches: as many times the usual batch.
// --library: whose optimizer; LibTorch's unless told. --clip: the gradients' norm is limited, by set_max_grad_norm() of
// an optimizer of ddp's, else by clip_grad_norm_().
// --step-in-backward: of ddp's optimizer. --flatten: flatten_parameters.
// --alone: every rank trains a replica of its own, without a wrapper, and its steps communicate with nobody; the
// allocator is set as the wrapper would set it.
//
// A step: gradients to none, forward, cross-entropy, backward, optimizer. One thread a rank unless OMP_NUM_THREADS says
// otherwise. Its keys are those of the programs that compare.sh runs beside it.
#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ddp/clip_grad.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/run.hpp"
#include "measure.hpp"
#include "networks.hpp"
#include "optimizer_kinds.hpp"
#include "options.hpp"
#include "train/allocator.hpp"

namespace {

using ddp::benchmarks::now_s;
using ddp::benchmarks::Options;
using ddp::benchmarks::quantile;
using ddp::benchmarks::Usage;

// What one rank measured, in the order in which the ranks exchange it.
enum Figure { median_ms, mean_ms, peak_mb, user_ms, system_ms, process_s, launch_s, last_loss, figures };
using Figures = std::vector<double>;

// The result of one key for every rank: "key": [1, 2].
std::string list(const char* key, const std::vector<Figures>& ranks, Figure figure) {
  std::string text = std::string(", \"") + key + "\": [";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    char number[32];
    std::snprintf(number, sizeof number, "%s%.6g", rank == 0 ? "" : ", ", ranks[rank][figure]);
    text += number;
  }
  return text + ']';
}

double latest(const std::vector<Figures>& ranks, Figure figure) {
  double value = -1;
  for (const auto& rank : ranks) value = std::max(value, rank[figure]);
  return value;
}

std::vector<Figures> of_all_ranks(const Figures& mine, ddp::ProcessGroup& group) {
  std::vector<Figures> ranks;
  for (const auto& row : group.all_gather(torch::tensor(mine, torch::kDouble)))
    ranks.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + figures);
  return ranks;
}

std::shared_ptr<ddp::ProcessGroup> join(const Options& options) {
  ddp::ProcessGroupOptions group;
  group.backend = options.text("backend", group.backend);
  group.store_file = options.text("store-file", {});
  if (options.has("device")) group.device = at::Device(options.text("device", "cpu"));
  return ddp::init_process_group(group);
}

// Until the device has done what was queued on it.
void drain(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

ddp::DistributedDataParallelOptions options_of(const Options& options) {
  ddp::DistributedDataParallelOptions result;
  result.bucket_cap_mb = options.number("bucket-cap-mb", result.bucket_cap_mb);
  result.gradient_as_bucket_view = !options.has("no-views");
  result.static_graph = options.has("static-graph");
  result.find_unused_parameters = options.has("find-unused");
  result.keep_freed_memory = options.count("keep-memory", 1) != 0;
  result.flatten_parameters = options.has("flatten");
  result.broadcast_buffers = !options.has("no-broadcast-buffers");
  if (options.has("overlap")) result.overlap_communication = options.count("overlap", 1) != 0;
  return result;
}

std::string mode_of(const Options& options) {
  if (options.has("alone")) return "alone";
  return std::string(options.has("no-views") ? "no views" : "views") + (options.has("flatten") ? ", flat" : "") +
         (options.has("step-in-backward") ? ", step in backward" : "");
}

void print(const Options& options, const ddp::benchmarks::Task& task, const ddp::ProcessGroup& group,
           const std::vector<double>& step_ms, const std::vector<Figures>& ranks, double first_loss) {
  std::int64_t elements = 0;
  const auto parameters = task.network->parameters();
  for (const auto& parameter : parameters) elements += parameter.numel();
  std::printf(R"({"peer": "ddp", "mode": "%s", "model": "%s", "world": %zu, "batch": %lld, "params": %lld, )"
              R"("tensors": %zu, "grad_mb": %.6g, "steps": %zu, "bucket_cap_mb": %g, )"
              R"("device": "%s", "backend": "%s", "static_graph": %s, "optimizer": "%s", "library": "%s", )"
              R"("ms_median": %.6g, "ms_p10": %.6g, "ms_p90": %.6g%s%s%s%s%s, )"
              R"("startup_process_s": %.4g, "startup_launch_s": %.4g, "loss_first": %.8g%s})"
              "\n",
              mode_of(options).c_str(), options.text("model", "mlp").c_str(), ranks.size(),
              static_cast<long long>(task.input.size(0)), static_cast<long long>(elements), parameters.size(),
              static_cast<double>(elements) * 4e-6, step_ms.size(), options_of(options).bucket_cap_mb,
              group.device().str().c_str(), std::string(group.backend()).c_str(),
              options.has("static-graph") ? "true" : "false", options.text("optimizer", "sgd").c_str(),
              options.text("library", "torch").c_str(), quantile(step_ms, 0.5), quantile(step_ms, 0.1),
              quantile(step_ms, 0.9), list("ms_median_ranks", ranks, median_ms).c_str(),
              list("ms_mean_ranks", ranks, mean_ms).c_str(), list("rss_mb_ranks", ranks, peak_mb).c_str(),
              list("user_ms_step_ranks", ranks, user_ms).c_str(), list("sys_ms_step_ranks", ranks, system_ms).c_str(),
              latest(ranks, process_s), latest(ranks, launch_s), first_loss,
              list("loss_last_ranks", ranks, last_loss).c_str());
}

struct Steps {
  std::function<torch::Tensor()> step;
  int count;
  int block;
  at::Device device;
};

// Runs the timed steps; returns what a step of each block took, in ms, and notes what they cost.
std::vector<double> measure(const Steps& steps, Figures& mine) {
  std::vector<double> step_ms;
  torch::Tensor loss;
  const auto before = Usage::of_process();
  const double start = now_s();
  for (int done = 0; done < steps.count; done += steps.block) {
    const double block_start = now_s();
    for (int i = 0; i < steps.block; ++i) loss = steps.step();
    drain(steps.device);
    step_ms.push_back((now_s() - block_start) / steps.block * 1e3);
  }
  const int run = static_cast<int>(step_ms.size()) * steps.block;
  mine[mean_ms] = (now_s() - start) / run * 1e3;
  const auto after = Usage::of_process();
  mine[median_ms] = quantile(step_ms, 0.5);
  mine[user_ms] = (after.user_s - before.user_s) / run * 1e3;
  mine[system_ms] = (after.system_s - before.system_s) / run * 1e3;
  mine[peak_mb] = after.peak_mb;
  mine[last_loss] = loss.item<double>();
  return step_ms;
}

// Takes a core as computing does.
void compute_until(double end) {
  while (now_s() < end) {
  }
}

// A rank's training, step by step.
class Training {
 public:
  Training(const Options& options, const ddp::benchmarks::Task& task, const std::shared_ptr<ddp::ProcessGroup>& group)
      : task_(task),
        model_(wrapped(options, task, group)),
        optimizer_(ddp::benchmarks::make_optimizer(options.text("optimizer", "sgd"), options.text("library", "torch"),
                                                   task.network->parameters())),
        slow_by_(options.count("slow-rank", -1) == group->rank() ? options.number("slow-by", 0.2) : 0) {
    if (options.has("step-in-backward")) {
      if (!model_) throw std::invalid_argument("--step-in-backward is for a wrapper, and --alone has none");
      ddp::benchmarks::fused(*optimizer_).step_in_backward(model_);
    }
    if (options.has("clip")) limit_norm(options.number("clip", 1), options.text("library", "torch") == "ddp");
  }

  torch::Tensor step() {
    const double start = now_s();
    optimizer_->zero_grad();
    const auto loss = task_.loss(model_ ? model_(task_.input) : task_.network->forward(task_.input));
    if (slow_by_ > 0)
      compute_until(now_s() + slow_by_ * 3 * (now_s() - start));  // a backward takes twice a forward's time
    loss.backward();
    if (clip_to_ > 0) ddp::clip_grad_norm_(task_.network->parameters(), clip_to_);
    optimizer_->step();
    return loss.detach();
  }

 private:
  using Model = ddp::DistributedDataParallel<ddp::benchmarks::Network>;

  static Model wrapped(const Options& options, const ddp::benchmarks::Task& task,
                       const std::shared_ptr<ddp::ProcessGroup>& group) {
    const auto wrapper = options_of(options);
    if (!options.has("alone")) return Model(task.network, group, wrapper);
    if (wrapper.keep_freed_memory) ddp::keep_freed_memory();
    return nullptr;
  }

  void limit_norm(double limit, bool by_optimizer) {
    if (by_optimizer)
      ddp::benchmarks::fused(*optimizer_).set_max_grad_norm(limit);
    else
      clip_to_ = limit;
  }

  ddp::benchmarks::Task task_;
  Model model_;  // null: alone
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  double slow_by_;
  double clip_to_ = 0;  // 0: not by this loop
};

void train(const Options& options) {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  torch::set_num_threads(threads == nullptr ? 1 : std::atoi(threads));
  const auto group = join(options);
  const auto device = group->device();
  const auto task =
      ddp::benchmarks::make_task(options.text("model", "mlp"), group->rank(), options.count("batches", 1), device);
  Training training(options, task, group);
  const auto step = [&] { return training.step(); };

  Figures mine(figures);
  const double first_loss = step().item<double>();
  mine[process_s] = ddp::benchmarks::since_process_start_s();
  mine[launch_s] = ddp::benchmarks::since_launch_s();
  for (int i = 1; i < options.count("warmup", 4); ++i) step();
  drain(device);
  group->barrier();
  const int block = std::max(1, options.count("block", device.is_cpu() ? 1 : 10));
  const auto step_ms = measure({step, options.count("steps", task.steps), block, device}, mine);
  const auto ranks = of_all_ranks(mine, *group);
  if (group->rank() == 0) print(options, task, *group, step_ms, ranks, first_loss);
}

const std::set<std::string> kOptions{
    // the training
    "model", "batches", "steps", "warmup", "block", "slow-rank", "slow-by", "optimizer", "library", "clip", "alone",
    // the wrapper and its group
    "no-views", "bucket-cap-mb", "static-graph", "find-unused", "overlap", "keep-memory", "no-broadcast-buffers",
    "step-in-backward", "flatten", "device", "backend", "store-file"};

}  // namespace

int main(int count, char** arguments) {
  return ddp::run([&] { train(Options(count, arguments, kOptions)); });
}
