#pragma once
/// measure.hpp: clocks, CPU time, memory and quantiles of this process.

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace ddp::benchmarks {

/// Seconds of a clock of clock_gettime().
inline double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
inline double now_s() { return seconds_of(CLOCK_MONOTONIC); }

struct Usage {
  double user_s, system_s, peak_mb;

  static Usage of_process() {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return {seconds(usage.ru_utime), seconds(usage.ru_stime), static_cast<double>(usage.ru_maxrss) / 1024};
  }
};

/// Since the kernel started this process; exact to a clock tick, 10 ms.
inline double since_process_start_s() {
  std::ifstream file("/proc/self/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(line.substr(line.rfind(')') + 2));  // after the name, which may hold anything
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // starttime, in ticks since boot
  return seconds_of(CLOCK_BOOTTIME) - std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

/// Since the moment of CLOCK_MONOTONIC that PEERS_T0 tells, the launcher's start; -1 without it.
inline double since_launch_s() {
  const char* start = std::getenv("PEERS_T0");
  return start == nullptr ? -1 : now_s() - std::stod(start);
}

/// `share` from 0 to 1, interpolated between the two nearest values.
inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

}  // namespace ddp::benchmarks
