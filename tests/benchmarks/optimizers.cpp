// Times an optimizer's step alone: LibTorch's and this library's, in turn, in one process without ranks.
//
//   optimizers --elements N  --tensors N,N  --only TITLE  --steps N  --rounds N  --double  --keep-memory 0|1
//
// So many elements in all, in tensors of one size, in as many of them as each of --tensors says. --only: one of the
// parts, such as adamw. One thread unless OMP_NUM_THREADS says otherwise. Before each step, outside the time that is
// taken, every gradient is written, as a backward does. The ways of one part take turns, --steps steps each a round; a
// figure is the median of the rounds. --keep-memory 0 leaves the allocator of all ways as glibc has it.
//
// faster: as many times as fast as the first row of the part. GB/s: what one pass has to read and to write, by its
// time. "side by side": parameters and gradients lie in one piece of memory each, as after flatten_parameters. The
// limit is a loop without an optimizer over as many arrays as the optimizer reads and writes, laid side by side: what
// the machine's memory gives in that minute, where the compiler vectorised it (the preset release).
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ddp/clip_grad.hpp"
#include "ddp/grad_scaler.hpp"
#include "ddp/run.hpp"
#include "measure.hpp"
#include "optimizer_kinds.hpp"
#include "options.hpp"
#include "reduce/side_by_side.hpp"
#include "train/allocator.hpp"

namespace {

using ddp::benchmarks::fused;
using ddp::benchmarks::make_optimizer;
using ddp::benchmarks::now_s;
using ddp::benchmarks::Options;
using ddp::benchmarks::quantile;
using ddp::benchmarks::seconds_of;

constexpr double kGradient = 1e-3;

struct Shape {
  std::int64_t elements, tensors;
  torch::Dtype dtype;

  double bytes() const { return static_cast<double>(elements) * static_cast<double>(c10::elementSize(dtype)); }
  // Half the norm that gradients of kGradient have: every step is one that clips.
  double max_norm() const { return 0.5 * kGradient * std::sqrt(static_cast<double>(elements)); }
};

enum class Layout { apart, side_by_side };

std::vector<torch::Tensor> make_tensors(const Shape& shape, Layout layout) {
  std::vector<torch::Tensor> tensors;
  for (std::int64_t i = 0; i < shape.tensors; ++i) {
    const auto size = shape.elements / shape.tensors + (i < shape.elements % shape.tensors ? 1 : 0);
    tensors.push_back(torch::empty({size}, shape.dtype));
  }
  if (layout == Layout::side_by_side) tensors = ddp::side_by_side(tensors);
  for (auto& tensor : tensors) tensor.normal_();
  return tensors;
}

// Parameters with gradients.
class Weights {
 public:
  Weights(const Shape& shape, Layout layout)
      : parameters_(make_tensors(shape, layout)), gradients_(make_tensors(shape, layout)) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].set_requires_grad(true).mutable_grad() = gradients_[i];
  }

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  void write_gradients() {
    for (auto& gradient : gradients_) gradient.fill_(kGradient);
  }

 private:
  std::vector<torch::Tensor> parameters_, gradients_;
};

// As plain as can be: reads the arrays `from` and `to`, writes the latter.
template <std::size_t written, class T>
void add_to_all(const std::array<T*, 3>& to, const T* from, std::int64_t begin, std::int64_t end) {
  T *first = to[0], *second = to[1], *third = to[2];
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T value = from[i];
    first[i] += value;
    if constexpr (written > 1) second[i] += value;
    if constexpr (written > 2) third[i] += value;
  }
}

// What the limit goes over: `written` arrays that are read and written, and one that is read.
template <std::size_t written>
class Arrays {
 public:
  explicit Arrays(const Shape& shape) : read_(array(shape)) {
    for (std::size_t i = 0; i < written; ++i) written_.push_back(array(shape));
  }

  // As the gradients are.
  void write() { read_.fill_(kGradient); }
  void pass() {
    if (read_.scalar_type() == torch::kDouble)
      pass_over<double>();
    else
      pass_over<float>();
  }

 private:
  static torch::Tensor array(const Shape& shape) {
    return make_tensors({shape.elements, 1, shape.dtype}, Layout::side_by_side).front();
  }
  template <class T>
  void pass_over() {
    std::array<T*, 3> to{};
    for (std::size_t i = 0; i < written; ++i) to[i] = written_[i].data_ptr<T>();
    const T* const from = read_.const_data_ptr<T>();
    at::parallel_for(0, read_.numel(), 1 << 15,
                     [&](std::int64_t begin, std::int64_t end) { add_to_all<written, T>(to, from, begin, end); });
  }

  torch::Tensor read_;
  std::vector<torch::Tensor> written_;
};

// One row of the table.
struct Way {
  std::string name;
  double passed = 0;  // bytes that one pass over everything has to read and to write; 0: takes several passes
  std::function<void()> before;  // not timed
  std::function<void()> step;
  std::vector<double> wall_ms = {}, cpu_ms = {};
};

using Step = std::function<void(torch::optim::Optimizer& optimizer, const Weights& weights)>;

void plain_step(torch::optim::Optimizer& optimizer, const Weights&) { optimizer.step(); }

struct Contender {
  std::string name, library;
  Layout layout = Layout::apart;
  double arrays = 0;  // read or written by one pass; see Way::passed
  Step step = plain_step;
};

Way way_of(const Contender& contender, const std::string& optimizer, const Shape& shape) {
  const auto weights = std::make_shared<Weights>(shape, contender.layout);
  const std::shared_ptr<torch::optim::Optimizer> stepped =
      make_optimizer(optimizer, contender.library, weights->parameters());
  return {contender.name, contender.arrays * shape.bytes(), [weights] { weights->write_gradients(); },
          [weights, stepped, step = contender.step] { step(*stepped, *weights); }};
}

template <std::size_t written>
Way limit(const Shape& shape) {
  const auto arrays = std::make_shared<Arrays<written>>(shape);
  return {"limit: reads " + std::to_string(written + 1) + ", writes " + std::to_string(written),
          (2 * written + 1) * shape.bytes(), [arrays] { arrays->write(); }, [arrays] { arrays->pass(); }};
}

// Ways that are compared with each other.
struct Part {
  std::string title, optimizer;
  std::vector<Contender> contenders;
  Way (*limit)(const Shape& shape);
};

std::vector<Contender> plain_contenders(double arrays) {
  return {{.name = "torch", .library = "torch"},
          {.name = "ddp", .library = "ddp", .arrays = arrays},
          {.name = "ddp, side by side", .library = "ddp", .layout = Layout::side_by_side, .arrays = arrays}};
}

std::vector<Contender> clipping_contenders(const Shape& shape) {
  const auto limit = shape.max_norm();
  const Step clip_then_step = [limit](torch::optim::Optimizer& optimizer, const Weights& weights) {
    ddp::clip_grad_norm_(weights.parameters(), limit);
    optimizer.step();
  };
  const Step limited_step = [limit](torch::optim::Optimizer& optimizer, const Weights&) {
    fused(optimizer).set_max_grad_norm(limit);
    optimizer.step();
  };
  return {
      {.name = "clip_grad_norm_, torch", .library = "torch", .step = clip_then_step},
      {.name = "clip_grad_norm_, ddp", .library = "ddp", .step = clip_then_step},
      {.name = "max_grad_norm, ddp", .library = "ddp", .step = limited_step},
      {.name = "max_grad_norm, side by side", .library = "ddp", .layout = Layout::side_by_side, .step = limited_step}};
}

std::vector<Contender> scaling_contenders() {
  const auto scaler = std::make_shared<ddp::GradScaler>(ddp::GradScalerOptions{.init_scale = 1024, .dynamic = false});
  const Step scaled_step = [scaler](torch::optim::Optimizer& optimizer, const Weights&) {
    if (!scaler->step(optimizer)) throw std::logic_error("a gradient was not finite");
    scaler->update();
  };
  return {{.name = "GradScaler, torch", .library = "torch", .step = scaled_step},
          {.name = "GradScaler, ddp", .library = "ddp", .step = scaled_step},
          {.name = "GradScaler, side by side", .library = "ddp", .layout = Layout::side_by_side, .step = scaled_step}};
}

std::vector<Part> parts(const Shape& shape) {
  return {{"sgd", "sgd", plain_contenders(3), limit<1>},
          {"sgd_momentum", "sgd_momentum", plain_contenders(5), limit<2>},
          {"adam", "adam", plain_contenders(7), limit<3>},
          {"adamw", "adamw", plain_contenders(7), limit<3>},
          {"adamw_clipped", "adamw", clipping_contenders(shape), limit<3>},
          {"adamw_scaled", "adamw", scaling_contenders(), limit<3>}};
}

// ms a step, wall and CPU.
std::pair<double, double> measure_block(const Way& way, int steps) {
  double wall_s = 0, cpu_s = 0;
  for (int i = 0; i < steps; ++i) {
    way.before();
    const double cpu_start = seconds_of(CLOCK_PROCESS_CPUTIME_ID), start = now_s();
    way.step();
    wall_s += now_s() - start;
    cpu_s += seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
  }
  return {wall_s / steps * 1e3, cpu_s / steps * 1e3};
}

void measure(std::vector<Way>& ways, const Options& options) {
  const int steps = std::max(1, options.count("steps", 5)), rounds = std::max(1, options.count("rounds", 7));
  for (int round = -1; round < rounds; ++round)
    for (auto& way : ways) {
      const auto [wall_ms, cpu_ms] = measure_block(way, steps);
      if (round < 0) continue;  // it makes the state
      way.wall_ms.push_back(wall_ms);
      way.cpu_ms.push_back(cpu_ms);
    }
}

void print(const Part& part, const std::vector<Way>& ways) {
  std::printf("%-30s %9s %9s %8s %8s\n", part.title.c_str(), "ms", "CPU ms", "faster", "GB/s");
  const double first = quantile(ways.front().wall_ms, 0.5);
  for (const auto& way : ways) {
    const double wall_ms = quantile(way.wall_ms, 0.5);
    std::printf("  %-28s %9.3f %9.3f %8.2f", way.name.c_str(), wall_ms, quantile(way.cpu_ms, 0.5), first / wall_ms);
    if (way.passed > 0) std::printf(" %8.2f", way.passed / wall_ms * 1e-6);
    std::printf("\n");
  }
  std::fflush(stdout);
}

void measure_all(const Options& options) {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  torch::set_num_threads(threads == nullptr ? 1 : std::atoi(threads));
  if (options.count("keep-memory", 1) != 0) ddp::keep_freed_memory();
  const auto dtype = options.has("double") ? torch::kDouble : torch::kFloat;
  const auto elements = static_cast<std::int64_t>(options.number("elements", 13.6e6));
  const auto only = options.text("only", "");
  std::istringstream counts(options.text("tensors", "13,1300"));
  for (std::string count; std::getline(counts, count, ',');) {
    const Shape shape{elements, std::stoll(count), dtype};
    std::printf("\n%lld elements of %s in %lld tensors; threads: %d\n", static_cast<long long>(shape.elements),
                options.has("double") ? "float64" : "float32", static_cast<long long>(shape.tensors),
                torch::get_num_threads());
    for (const auto& part : parts(shape)) {
      if (!only.empty() && only != part.title) continue;
      std::vector<Way> ways;
      for (const auto& contender : part.contenders) ways.push_back(way_of(contender, part.optimizer, shape));
      ways.push_back(part.limit(shape));
      measure(ways, options);
      print(part, ways);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  return ddp::run([&] {
    measure_all(Options(count, arguments, {"elements", "tensors", "only", "steps", "rounds", "double", "keep-memory"}));
  });
}
