// Times one collective after the other over a range of sizes, in the words of nccl-tests.
//
//   collectives --operation all_reduce|broadcast|all_gather  --min-bytes N  --max-bytes N  --factor N  --sizes N,N
//               --warmup N  --iterations N  --own
//
// Without --operation: all of them. --own: the data lies in memory that the group gave, ProcessGroup::allocate(). size:
// bytes of the largest buffer of a rank. count: elements (float32) that a rank gives. time: median over the iterations
// of the slowest rank's time for the call, in us; nccl-tests gives the mean, which a busy machine moves more. algbw =
// size / time, in GB/s. busbw: what each rank's link must carry at least, algbw x 2(n-1)/n for all_reduce, (n-1)/n for
// all_gather, 1 for broadcast. #wrong: elements of a first, untimed call that are not what they must be, over all
// ranks. rank 0: the median of its own time alone, which is what benchmarks of other libraries give.
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "ddp/process_group.hpp"
#include "ddp/run.hpp"
#include "measure.hpp"
#include "options.hpp"

namespace {

using ddp::benchmarks::now_s;
using ddp::benchmarks::Options;

struct Collective {
  const char* name;
  double (*bus_factor)(double ranks);
  bool output_has_all_ranks;  // the largest buffer holds a part from each rank
  // The rank's own data lies in `data`; returns what the call gave.
  std::vector<torch::Tensor> (*call)(ddp::ProcessGroup& group, torch::Tensor& data);
  // What each tensor of the result must be, where rank r gave r + 1 everywhere.
  std::vector<double> (*expected)(int ranks);
};

std::vector<torch::Tensor> all_reduce(ddp::ProcessGroup& group, torch::Tensor& data) {
  group.all_reduce(data);
  return {data};
}
std::vector<torch::Tensor> broadcast(ddp::ProcessGroup& group, torch::Tensor& data) {
  group.broadcast(data, 0);
  return {data};
}
std::vector<torch::Tensor> all_gather(ddp::ProcessGroup& group, torch::Tensor& data) { return group.all_gather(data); }

const std::vector<Collective> kCollectives{
    {"all_reduce", [](double n) { return 2 * (n - 1) / n; }, false, all_reduce,
     [](int n) { return std::vector<double>{n * (n + 1) / 2.0}; }},
    {"broadcast", [](double) { return 1.0; }, false, broadcast, [](int) { return std::vector<double>{1}; }},
    {"all_gather", [](double n) { return (n - 1) / n; }, true, all_gather,
     [](int n) {
       std::vector<double> parts;
       for (int rank = 0; rank < n; ++rank) parts.push_back(rank + 1);
       return parts;
     }},
};

std::int64_t wrong_elements(const std::vector<torch::Tensor>& result, const std::vector<double>& expected) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < result.size(); ++i) wrong += (result[i] != expected.at(i)).sum().item<std::int64_t>();
  return wrong;
}

struct Plan {
  std::int64_t count;
  int warmup, iterations;
  bool own;
};

torch::Tensor data_of(const Plan& plan, ddp::ProcessGroup& group) {
  if (!plan.own) return torch::empty({plan.count});
  return group.allocate(plan.count * 4).view(torch::kFloat);
}

void measure(const Collective& collective, const Plan& plan, ddp::ProcessGroup& group) {
  auto data = data_of(plan, group).fill_(group.rank() + 1.0F);
  auto wrong = torch::tensor(wrong_elements(collective.call(group, data), collective.expected(group.size())));
  data.zero_();  // sums of zeros stay zeros
  std::vector<double> times;
  for (int i = -plan.warmup; i < plan.iterations; ++i) {
    group.barrier();
    const double start = now_s();
    collective.call(group, data);
    if (i >= 0) times.push_back(now_s() - start);
  }
  auto slowest = torch::tensor(times, torch::kDouble);
  const double own = slowest.median().item<double>();
  group.all_reduce(slowest, ddp::ReduceOp::max);
  group.all_reduce(wrong);
  if (group.rank() != 0) return;
  const double time = slowest.median().item<double>();
  const auto size = plan.count * 4 * (collective.output_has_all_ranks ? group.size() : 1);
  const double algbw = static_cast<double>(size) / time * 1e-9;
  std::printf("%12lld %12lld %9s %12.2f %9.3f %9.3f %8lld %10.2f\n", static_cast<long long>(size),
              static_cast<long long>(plan.count), "float", time * 1e6, algbw,
              algbw * collective.bus_factor(group.size()), static_cast<long long>(wrong.item<std::int64_t>()),
              own * 1e6);
  std::fflush(stdout);
}

std::vector<std::int64_t> sizes_of(const Options& options) {
  std::vector<std::int64_t> sizes;
  std::istringstream named(options.text("sizes", ""));
  for (std::string size; std::getline(named, size, ',');) sizes.push_back(std::stoll(size));
  if (!sizes.empty()) return sizes;
  const auto last = static_cast<std::int64_t>(options.number("max-bytes", 64 << 20));
  const auto first = std::max<std::int64_t>(static_cast<std::int64_t>(options.number("min-bytes", 4096)), 4);
  for (auto bytes = first; bytes <= last; bytes *= std::max(2, options.count("factor", 4))) sizes.push_back(bytes);
  return sizes;
}

// As many as take about a second where Gloo runs on one host.
int iterations_for(std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>((64 << 20) / bytes, 5, 5000));
}

void measure_all(const Options& options) {
  torch::set_num_threads(1);
  const auto group = ddp::init_process_group();
  const auto chosen = options.text("operation", "");
  for (const auto& collective : kCollectives) {
    if (!chosen.empty() && chosen != collective.name) continue;
    if (group->rank() == 0) {
      std::printf("# %s, %d ranks, %s\n", collective.name, group->size(), std::string(group->backend()).c_str());
      std::printf("#%11s %12s %9s %12s %9s %9s %8s %10s\n", "size", "count", "type", "time", "algbw", "busbw", "#wrong",
                  "rank 0");
      std::printf("#%11s %12s %9s %12s %9s %9s %8s %10s\n", "(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", "",
                  "(us)");
    }
    for (const auto bytes : sizes_of(options)) {
      const auto parts = collective.output_has_all_ranks ? group->size() : 1;
      const int iterations = options.count("iterations", iterations_for(bytes));
      measure(collective,
              {std::max<std::int64_t>(bytes / 4 / parts, 1), options.count("warmup", std::max(3, iterations / 10)),
               iterations, options.has("own")},
              *group);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  return ddp::run([&] {
    measure_all(Options(count, arguments,
                        {"operation", "min-bytes", "max-bytes", "factor", "warmup", "iterations", "own", "sizes"}));
  });
}
