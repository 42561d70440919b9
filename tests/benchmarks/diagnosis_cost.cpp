// What the diagnosis that is always on costs, as a share of the perceptron's step: the record of each call, the marks
// of phases and steps, and the library's threads that watch over the ranks or answer questions. Run it on two ranks:
//
//   ddprun --nproc-per-node 2 benchmark_diagnosis_cost --seconds 10 --calls 100000 --rounds 7
//
// The sum: what one call, phase and mark cost (CPU time of the thread, median of the rounds), times how many of them a
// step makes, counted; and the CPU time of each of those threads while the perceptron trains for so many seconds. All
// of it is CPU time, but for the cost of a call and a phase between the steps of a training, where caches hold other
// things (*cold*): a look at the CPU time of a thread would cost more than they do, so the median is the steady
// clock's. The share counts the cold ones. Prints from rank 0 one line of JSON and one for people, of the rank with
// the largest share.
//
// There is no A/B in this program, for the library has no switch: warn_after = 0 leaves every thread in place. Nor
// would two runs show it: a step's CPU time moves by some per cent from run to run.
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_sample.hpp"
#include "comm/flight_recorder.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/run.hpp"
#include "measure.hpp"
#include "networks.hpp"
#include "options.hpp"

namespace {

using ddp::benchmarks::Options;
using ddp::benchmarks::quantile;
using ddp::benchmarks::seconds_of;
using ddp::comm::Call;
using ddp::comm::FlightRecorder;
using ddp::comm::Start;

// Counted for the whole program. One thread at a time numbers calls, and one has phases.
std::atomic<std::uint64_t> calls_made{0}, phases_begun{0}, steps_marked{0};

void count(std::atomic<std::uint64_t>& of) {
  of.store(of.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

// The linker leads every call of the three functions here (--wrap, see CMakeLists.txt).
void enter(FlightRecorder* recorder, Call* call,
           Start start) asm("__real__ZN3ddp4comm14FlightRecorder5enterERNS0_4CallENS0_5StartE");
void begin_phase(void* phase, const char* name) asm("__real__ZN3ddp5PhaseC1EPKc");
void mark_step(std::int64_t number) asm("__real__ZN3ddp4stepEl");
void enter_counted(FlightRecorder* recorder, Call* call,
                   Start start) asm("__wrap__ZN3ddp4comm14FlightRecorder5enterERNS0_4CallENS0_5StartE");
void begin_phase_counted(void* phase, const char* name) asm("__wrap__ZN3ddp5PhaseC1EPKc");
void mark_step_counted(std::int64_t number) asm("__wrap__ZN3ddp4stepEl");

void enter_counted(FlightRecorder* recorder, Call* call, Start start) {
  count(calls_made);
  enter(recorder, call, start);
}
void begin_phase_counted(void* phase, const char* name) {
  count(phases_begun);
  begin_phase(phase, name);
}
void mark_step_counted(std::int64_t number) {
  count(steps_marked);
  mark_step(number);
}

namespace {

// The threads that exist for the diagnosis; the watch also hears of deaths.
constexpr const char* kThreads[] = {"ddp-watchdog", "ddp-inspect", "ddp-watch-link", "ddp-watch-hub", "ddp-dump"};
constexpr int kThreadCount = 5;

// What one rank has measured, in the order in which the ranks exchange it.
enum Figure {
  call_ns,
  call_cold_ns,
  phase_ns,
  phase_cold_ns,
  mark_ns,
  calls_a_step,
  phases_a_step,
  marks_a_step,
  step_cpu_us,
  step_wall_us,
  first_thread_us_a_step,  // one for each of kThreads
  figures = first_thread_us_a_step + kThreadCount
};
constexpr const char* kKeys[] = {"call_ns",      "call_cold_ns",  "phase_ns",     "phase_cold_ns", "mark_ns",
                                 "calls_a_step", "phases_a_step", "marks_a_step", "step_cpu_us",   "step_wall_us"};
using Figures = std::vector<double>;

// A call of the reducer's, with a label as long as a bucket's.
struct Recorded {
  FlightRecorder recorder;
  ddp::comm::Signature signature{ddp::comm::Operation::all_reduce};
  std::string label = "bucket 1 of 2 (layer4.bias to layer1.weight)";

  void once() {
    Call call{signature, label, ddp::comm::Meeting::plan};
    recorder.enter(call);
    recorder.start(call.ticket);
    recorder.complete(call);
  }
};

void one_phase() { const ddp::Phase phase("forward"); }

// CPU time of this thread, in ns, for one time; the median of the rounds.
template <class Once>
double ns_of(const Options& options, const Once& once) {
  const int calls = options.count("calls", 100000);
  std::vector<double> rounds;
  for (int round = 0; round < options.count("rounds", 7); ++round) {
    const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < calls; ++i) once();
    rounds.push_back((seconds_of(CLOCK_THREAD_CPUTIME_ID) - start) / calls * 1e9);
  }
  return quantile(rounds, 0.5);
}

template <class Once>
double ns_between_two_looks(const Once& once) {
  const auto start = std::chrono::steady_clock::now();
  once();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

class Training {
 public:
  explicit Training(std::shared_ptr<ddp::ProcessGroup> group)
      : task_(ddp::benchmarks::make_task("mlp", group->rank())), model_(task_.network, std::move(group)) {}

  // Marks what a program's loop over make_data_loader() marks.
  void step() {
    ddp::step(++number_);
    const auto input = [&] {
      const ddp::Phase phase("loading data");
      return task_.input;
    }();
    optimizer_.zero_grad();
    task_.loss(model_(input)).backward();
    optimizer_.step();
  }

 private:
  ddp::benchmarks::Task task_;
  ddp::DistributedDataParallel<ddp::benchmarks::Network> model_;
  torch::optim::SGD optimizer_{model_->parameters(), torch::optim::SGDOptions(0.01)};
  std::int64_t number_ = 0;
};

void measure_single(const Options& options, Figures& mine) {
  Recorded recorded;
  mine[call_ns] = ns_of(options, [&] { recorded.once(); });
  mine[phase_ns] = ns_of(options, one_phase);
  mine[mark_ns] = ns_of(options, [] { ddp::step(0); });
}

// Collective.
void measure_cold(Training& training, Figures& mine) {
  constexpr int steps = 100;
  Recorded recorded;
  std::vector<double> calls, phases, nothing;
  for (int i = 0; i < steps; ++i) {
    training.step();
    calls.push_back(ns_between_two_looks([&] { recorded.once(); }));
    training.step();
    phases.push_back(ns_between_two_looks(one_phase));
    nothing.push_back(ns_between_two_looks([] {}));
  }
  mine[call_cold_ns] = quantile(calls, 0.5) - quantile(nothing, 0.5);
  mine[phase_cold_ns] = quantile(phases, 0.5) - quantile(nothing, 0.5);
}

// CPU time so far of this process's threads of each of kThreads.
std::vector<double> thread_seconds() {
  std::vector<double> seconds(kThreadCount);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    for (int i = 0; i < kThreadCount; ++i) {
      if (name != kThreads[i]) continue;
      const auto sample = ddp::sample_thread({::getpid(), std::stoi(entry.path().filename())});
      if (sample) seconds[static_cast<std::size_t>(i)] += std::chrono::duration<double>(sample->on_core).count();
    }
  }
  return seconds;
}

// The same on all ranks: rank 0's.
int steps_in(double seconds, double step_seconds, ddp::ProcessGroup& group) {
  auto steps = torch::tensor({std::max<std::int64_t>(10, std::llround(seconds / step_seconds))});
  group.broadcast(steps);
  return steps.item<int>();
}

// Collective.
int measure_training(Training& training, double seconds, ddp::ProcessGroup& group, Figures& mine) {
  constexpr int warm = 20;
  const double warm_start = ddp::benchmarks::now_s();
  for (int i = 0; i < warm; ++i) training.step();
  const int steps = steps_in(seconds, (ddp::benchmarks::now_s() - warm_start) / warm, group);
  const auto a_step = [&](double sum) { return sum / steps; };

  const std::uint64_t calls = calls_made, phases = phases_begun, marks = steps_marked;
  const auto threads = thread_seconds();
  const double start = ddp::benchmarks::now_s(), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  for (int i = 0; i < steps; ++i) training.step();
  mine[step_cpu_us] = a_step(seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1e6;
  mine[step_wall_us] = a_step(ddp::benchmarks::now_s() - start) * 1e6;
  const auto threads_now = thread_seconds();
  for (std::size_t i = 0; i < threads.size(); ++i)
    mine[first_thread_us_a_step + i] = a_step(threads_now[i] - threads[i]) * 1e6;
  mine[calls_a_step] = a_step(static_cast<double>(calls_made - calls));
  mine[phases_a_step] = a_step(static_cast<double>(phases_begun - phases));
  mine[marks_a_step] = a_step(static_cast<double>(steps_marked - marks));
  if (mine[calls_a_step] == 0 || mine[phases_a_step] == 0)
    throw std::runtime_error("no call or no phase was counted: the library has to be linked statically");
  return steps;
}

// One rank's cost of a step, in us, by part.
struct Cost {
  double recording = 0, phases = 0, marks = 0, threads = 0, step = 0;

  explicit Cost(const Figures& of)
      : recording(of[calls_a_step] * of[call_cold_ns] * 1e-3),
        phases(of[phases_a_step] * of[phase_cold_ns] * 1e-3),
        marks(of[marks_a_step] * of[mark_ns] * 1e-3),
        step(of[step_cpu_us]) {
    for (int i = 0; i < kThreadCount; ++i) threads += of[first_thread_us_a_step + static_cast<std::size_t>(i)];
  }
  double percent() const { return (recording + phases + marks + threads) / step * 100; }
};

void print_list(const std::string& key, const std::vector<Figures>& ranks,
                const std::function<double(const Figures&)>& value) {
  std::printf(", \"%s\": [", key.c_str());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    std::printf("%s%.5g", rank == 0 ? "" : ", ", value(ranks[rank]));
  std::printf("]");
}

void print(const std::vector<Figures>& ranks, std::string_view backend, int steps) {
  std::printf(R"({"benchmark": "diagnosis_cost", "model": "mlp", "world": %zu, "backend": "%s", "steps": %d)",
              ranks.size(), std::string(backend).c_str(), steps);
  for (std::size_t key = 0; key < std::size(kKeys); ++key)
    print_list(kKeys[key], ranks, [key](const Figures& of) { return of[key]; });
  for (std::size_t i = 0; i < std::size(kThreads); ++i) {
    const auto us_a_second = [i](const Figures& of) { return of[first_thread_us_a_step + i] / of[step_wall_us] * 1e6; };
    print_list(kThreads[i] + std::string("_us_a_second"), ranks, us_a_second);
  }
  print_list("share_percent", ranks, [](const Figures& of) { return Cost(of).percent(); });
  std::printf("}\n");

  const auto most = std::max_element(ranks.begin(), ranks.end(), [](const auto& one, const auto& other) {
    return Cost(one).percent() < Cost(other).percent();
  });
  const Cost cost(*most);
  std::printf(
      "the diagnosis takes %.3f %% of a step of %.0f us on rank %td: %.2f us for %.3g recorded calls, %.2f us for %.3g "
      "phases, %.3f us for %.3g marks of a step, %.2f us for threads\n",
      cost.percent(), cost.step, most - ranks.begin(), cost.recording, (*most)[calls_a_step], cost.phases,
      (*most)[phases_a_step], cost.marks, (*most)[marks_a_step], cost.threads);
}

void measure(const Options& options) {
  torch::set_num_threads(1);
  const auto group = ddp::init_process_group();
  if (group->size() < 2) throw std::invalid_argument("alone there is nothing to diagnose: start it on two ranks");
  Figures mine(figures);
  measure_single(options, mine);
  Training training(group);
  const int steps = measure_training(training, options.number("seconds", 10), *group, mine);
  measure_cold(training, mine);
  std::vector<Figures> ranks;
  for (const auto& row : group->all_gather(torch::tensor(mine, torch::kDouble)))
    ranks.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + figures);
  if (group->rank() == 0) print(ranks, group->backend(), steps);
}

}  // namespace

int main(int count, char** arguments) {
  return ddp::run([&] { measure(Options(count, arguments, {"seconds", "calls", "rounds"})); });
}
