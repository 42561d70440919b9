#include "base/thread_report.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/thread_state.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMost = 32;  // on a host of many cores most of the others are workers that wait
constexpr int kLooks = 10;
constexpr std::chrono::milliseconds kPause{10};
constexpr std::chrono::seconds kForStacks{2};
constexpr std::array<std::string_view, 5> kOwnThreads{"ddp-dump", "ddp-inspect", "ddp-watch-hub", "ddp-watch-link",
                                                      "ddp-watchdog"};

std::string name_of(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

/// The main thread's number is the process's and so the lowest, until numbers begin anew.
std::vector<pid_t> threads_in_order() {
  std::vector<pid_t> threads;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", none)) {
    const auto name = entry.path().filename().string();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    if (thread > 0) threads.push_back(thread);
  }
  const auto place = [main = ::getpid()](pid_t thread) { return std::pair(thread != main, thread); };
  std::ranges::sort(threads, {}, place);
  return threads;
}

std::vector<ThreadReport> chosen() {
  std::vector<ThreadReport> reports;
  for (const auto thread : threads_in_order()) {
    auto name = name_of(thread);
    const bool is_own = std::ranges::find(kOwnThreads, name) != kOwnThreads.end();
    if (!is_own && reports.size() < kMost) reports.push_back({thread, std::move(name), {}, {}});
  }
  return reports;
}

/// All at a time, for each is looked at for a tenth of a second.
void describe(std::vector<ThreadReport>& reports) {
  std::vector<std::vector<ThreadSample>> samples(reports.size());
  for (int look = 0; look <= kLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(kPause);
    for (std::size_t i = 0; i < reports.size(); ++i) {
      if (auto sample = sample_thread({::getpid(), reports[i].thread})) samples[i].push_back(std::move(*sample));
    }
  }
  for (std::size_t i = 0; i < reports.size(); ++i)
    reports[i].state = reports[i].thread == ::gettid() ? "makes this report" : described(judge(samples[i]));
}

}  // namespace

std::vector<ThreadReport> thread_reports() {
  auto reports = chosen();
  describe(reports);
  const auto until = Clock::now() + kForStacks;
  for (auto& report : reports) {
    if (Clock::now() < until)
      report.stack = stack_of(report.thread);
    else
      report.stack.missing = "other threads have taken the time for it";
  }
  return reports;
}

}  // namespace ddp
