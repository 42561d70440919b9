// What a wrapper costs the thread that trains, beside all communication: the time of a parameter's hook, its copy into
// a bucket, and the end of the backward. Run it on two ranks: ddprun --nproc-per-node 2 benchmark_host_cost
//
//   benchmark_host_cost --parameters 10000 --elements 16 --steps 30 --only bare|ddp|c10d
//
// Three ways take turns, step by step: the bare module; DistributedDataParallel with no_communication(); LibTorch's
// c10d::Reducer with a communication hook that does nothing, gradient_as_bucket_view in both. Prints one line of JSON
// from rank 0: medians of the thread's CPU time a step, and what a parameter costs above the bare module.
#include <torch/torch.h>
// c10d::Reducer's header wants the types of the others.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/run.hpp"
#include "measure.hpp"
#include "options.hpp"

namespace {

using ddp::benchmarks::quantile;
using ddp::benchmarks::seconds_of;

// Parameters that one operation puts together: as little work of autograd's as can be.
struct ManyImpl : torch::nn::Module {
  ManyImpl(int parameters, int elements) {
    for (int i = 0; i < parameters; ++i)
      weights.push_back(register_parameter("weight" + std::to_string(i), torch::ones({elements})));
  }
  torch::Tensor forward() { return torch::cat(weights).sum(); }
  std::vector<torch::Tensor> weights;
};

class NoCommunication : public c10d::CommHookInterface {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(c10::IValue(bucket.getBuffer()));
    return future;
  }
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }
};

// A world of one: c10d::Reducer broadcasts its plan once.
class Done : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};
class Alone : public c10d::Backend {
 public:
  Alone() : c10d::Backend(0, 1) {}
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<Done>();
  }
};

// As PyTorch's DistributedDataParallel makes it.
std::shared_ptr<c10d::Reducer> c10d_reducer(const std::vector<torch::Tensor>& parameters) {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  group->setBackend(at::kCPU, c10d::ProcessGroup::CUSTOM, c10::make_intrusive<Alone>());
  group->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  const std::vector<bool> sparse(parameters.size(), false);
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) names[i] = "weight" + std::to_string(i);
  auto [plan, limits] =
      c10d::compute_bucket_assignment_by_size(parameters, {std::numeric_limits<std::size_t>::max() >> 1}, sparse);
  std::reverse(plan.begin(), plan.end());
  auto reducer =
      std::make_shared<c10d::Reducer>(parameters, plan, group, sparse, c10d::kDefaultBucketBytesCap, false, true, names,
                                      c10d::kDefaultFirstBucketBytes, false, false, std::vector<std::int64_t>{}, false);
  reducer->register_comm_hook(std::make_unique<NoCommunication>());
  return reducer;
}

struct Way {
  const char* name;
  std::function<void()> step;
  std::vector<double> us = {};
};

void reset(ManyImpl& module) {
  for (auto& weight : module.weights) weight.mutable_grad().reset();
}

void measure(const ddp::benchmarks::Options& options) {
  torch::set_num_threads(1);
  const auto group = ddp::init_process_group();
  const int count = options.count("parameters", 10000);
  const auto make = [&] { return std::make_shared<ManyImpl>(count, options.count("elements", 16)); };
  const auto bare = make(), ours = make(), theirs = make();
  ddp::DistributedDataParallel model(ours, group, {.comm_hook = ddp::no_communication()});
  const auto reducer = c10d_reducer(theirs->weights);
  std::vector<Way> ways{{"bare",
                         [&] {
                           reset(*bare);
                           bare->forward().backward();
                         }},
                        {"ddp",
                         [&] {
                           reset(*ours);
                           model().backward();
                         }},
                        {"c10d", [&] {
                           reset(*theirs);
                           reducer->prepare_for_forward();
                           reducer->rebuild_buckets();
                           auto loss = theirs->forward();
                           reducer->prepare_for_backward(std::vector<torch::Tensor>{});
                           loss.backward();
                         }}};
  const auto only = options.text("only", "");
  std::erase_if(ways, [&](const Way& way) { return !only.empty() && only != way.name; });
  for (int step = -3; step < options.count("steps", 30); ++step)
    for (auto& way : ways) {
      const auto start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      way.step();
      if (step >= 0) way.us.push_back((seconds_of(CLOCK_THREAD_CPUTIME_ID) - start) * 1e6);
    }
  if (group->rank() != 0) return;
  std::printf("{\"parameters\": %d", count);
  for (const auto& way : ways) std::printf(", \"%s_us\": %.1f", way.name, quantile(way.us, 0.5));
  for (std::size_t i = 1; i < ways.size() && only.empty(); ++i)
    std::printf(", \"%s_ns_a_parameter\": %.1f", ways[i].name,
                (quantile(ways[i].us, 0.5) - quantile(ways[0].us, 0.5)) * 1e3 / count);
  std::printf("}\n");
}

}  // namespace

int main(int count, char** arguments) {
  return ddp::run([&] { measure({count, arguments, {"parameters", "elements", "steps", "only"}}); });
}
