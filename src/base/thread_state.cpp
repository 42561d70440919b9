#include "base/thread_state.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ranges>
#include <string_view>
#include <thread>
#include <vector>

namespace ddp {
namespace {

constexpr int kLooks = 10;  // each costs some 50 us; fewer could miss a state that alternates
constexpr double kMostly = 0.5;
// A disk that turns gives about 100 pages a second. Where memory suffices a rank has a few faults now and then.
constexpr double kManyFaults = 50;
// Pages that come back from compressed memory cost time on the core instead.
constexpr double kVeryManyFaults = 1000;
constexpr double kBusy = 0.8;

double share_in(std::span<const ThreadSample> samples, std::string_view states) {
  const auto in = std::ranges::count_if(
      samples, [&](const ThreadSample& sample) { return states.find(sample.state) != std::string_view::npos; });
  return samples.empty() ? 0 : static_cast<double>(in) / static_cast<double>(samples.size());
}

bool is_frozen(const ThreadSample& sample) {
  return sample.kernel_function == "do_freezer_trap" || sample.kernel_function == "__refrigerator";
}

double share(std::chrono::nanoseconds part, std::chrono::nanoseconds whole) {
  return whole.count() <= 0 ? 0 : std::clamp(std::chrono::duration<double>(part) / whole, 0.0, 1.0);
}

double per_second(std::uint64_t from, std::uint64_t to, std::chrono::nanoseconds time) {
  return time.count() <= 0 || to < from ? 0
                                        : static_cast<double>(to - from) / std::chrono::duration<double>(time).count();
}

ThreadState measured(std::span<const ThreadSample> samples) {
  const auto& first = samples.front();
  const auto& last = samples.back();
  const auto time = last.taken - first.taken;
  ThreadState state;
  state.on_core = share(last.on_core - first.on_core, time);
  state.without_core = share(last.waited_for_core - first.waited_for_core, time);
  state.waits_per_second = per_second(first.waits, last.waits, time);
  // The kernel counts a wait for a core when it ends, so the wait of a thread that never gets one shows only here.
  if (time.count() > 0 && share_in(samples, "R") == 1 && state.waits_per_second == 0) {
    state.without_core = std::max(state.without_core, 1 - state.on_core);
  }
  state.major_faults_per_second = per_second(first.major_faults, last.major_faults, time);
  state.disk_seen = last.waited_for_disk > first.waited_for_disk;
  return state;
}

bool reads_memory_back(const ThreadState& state, double in_disk_wait) {
  const double faults = state.major_faults_per_second;
  return faults >= kVeryManyFaults || (faults >= kManyFaults && state.on_core < kBusy) ||
         (faults > 0 && in_disk_wait >= kMostly);
}

Hindrance verdict(const ThreadState& state, std::span<const ThreadSample> samples) {
  if (share_in({&samples.back(), 1}, "ZX") > 0) return Hindrance::ended;
  if (std::ranges::all_of(samples, is_frozen)) return Hindrance::frozen;
  if (share_in(samples, "T") >= kMostly) return Hindrance::stopped;
  if (share_in(samples, "t") >= kMostly) return Hindrance::traced;
  const double in_disk_wait = share_in(samples, "D");
  if (reads_memory_back(state, in_disk_wait)) return Hindrance::major_faults;
  if (in_disk_wait >= kMostly) return Hindrance::disk_wait;
  if (state.without_core >= kMostly) return Hindrance::starved;
  if (state.on_core >= kMostly || share_in(samples, "R") > kMostly) return Hindrance::running;
  return Hindrance::sleeping;
}

/// Where it was when it last waited in one of `states`.
std::string place_of(std::span<const ThreadSample> samples, std::string_view states) {
  for (const auto& sample : std::ranges::reverse_view(samples)) {
    if (states.find(sample.state) == std::string_view::npos) continue;
    return sample.system_call.empty() ? sample.kernel_function : sample.system_call;
  }
  return {};
}

/// Of a thread without a sample. One that exists is hidden where /proc is mounted with hidepid, or not at all.
ThreadState state_of_the_unseen(const ThreadId& thread) {
  ThreadState state;
  const bool reused = sample_thread({thread.process, thread.thread}).has_value();
  const bool exists = ::syscall(SYS_tgkill, thread.process, thread.thread, 0) == 0 || errno == EPERM;
  state.hindrance = exists && !reused ? Hindrance::unknown : Hindrance::ended;
  return state;
}

std::string percent(double share) { return std::to_string(std::lround(share * 100)) + " %"; }
std::string rate(double per_second) { return std::to_string(std::lround(per_second)); }
std::string in_brackets(const std::string& text) { return text.empty() ? "" : " (" + text + ")"; }

std::string described_sleep(const ThreadState& state) {
  if (state.waits_per_second == 0) return "sleeps" + in_brackets(state.waits_in);
  return "sleeps and wakes " + rate(state.waits_per_second) + " times/s (" + percent(state.on_core) + " of a core" +
         (state.waits_in.empty() ? "" : "; ") + state.waits_in + ")";
}

}  // namespace

ThreadState judge(std::span<const ThreadSample> samples) {
  if (samples.empty()) return {};
  auto state = measured(samples);
  state.hindrance = verdict(state, samples);
  state.tracer = samples.back().tracer;
  if (state.hindrance == Hindrance::sleeping) state.waits_in = place_of(samples, "SI");
  if (state.hindrance == Hindrance::disk_wait) state.waits_in = place_of(samples, "D");
  return state;
}

ThreadState hindrance_of(const ThreadId& thread, std::chrono::milliseconds time) {
  std::vector<ThreadSample> samples;
  ThreadId same = thread;
  for (int look = 0; look <= kLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(time) / kLooks);
    auto sample = sample_thread(same);
    if (!sample) return state_of_the_unseen(same);
    same.started = sample->started;
    samples.push_back(std::move(*sample));
  }
  return judge(samples);
}

std::string described(const ThreadState& state) {
  switch (state.hindrance) {
    case Hindrance::running:
      return "runs (" + percent(state.on_core) + " of a core)";
    case Hindrance::sleeping:
      return described_sleep(state);
    case Hindrance::disk_wait:
      return (state.disk_seen ? "waits for a disk" : "waits for a disk or a driver") + in_brackets(state.waits_in);
    case Hindrance::major_faults:
      return "reads pages back from disk (" + rate(state.major_faults_per_second) + " major faults/s)";
    case Hindrance::starved:
      return "waits for a core (" + percent(state.without_core) + " of the time)";
    case Hindrance::stopped:
      return "is stopped (SIGSTOP or Ctrl-Z)";
    case Hindrance::frozen:
      return "is frozen (its container or cgroup is paused)";
    case Hindrance::traced:
      return "is held by a debugger" + (state.tracer == 0 ? "" : " (process " + std::to_string(state.tracer) + ")");
    case Hindrance::ended:
      return "has ended";
    case Hindrance::unknown:
      break;
  }
  return "cannot be seen in /proc";
}

}  // namespace ddp
