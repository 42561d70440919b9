// Groups made and destroyed again and again leave nothing behind.
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

struct Holdings {
  std::int64_t descriptors = 0, threads = 0, resident_bytes = 0;

  static Holdings now() {
    const auto count = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{});
    };
    ::malloc_trim(0);
    std::int64_t pages = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    return {count("/proc/self/fd"), count("/proc/self/task"), resident * ::sysconf(_SC_PAGESIZE)};
  }
};

// What a process and its libraries keep for good is there after some rounds. 200 groups that kept one
// connection, thread or record of calls each would need 200 descriptors, threads, or 10 MB.
constexpr int kWarmUp = 20, kRounds = 200;
constexpr std::int64_t kMemory = 4 << 20;

void expect_nothing_grows(const std::function<void()>& round) {
  for (int i = 0; i < kWarmUp; ++i) round();
  const auto before = Holdings::now();
  for (int i = 0; i < kRounds; ++i) round();
  auto after = Holdings::now();
  // A thread that ends is listed for a moment longer.
  for (const auto limit = std::chrono::steady_clock::now() + 5s;
       (after.threads > before.threads || after.descriptors > before.descriptors) &&
       std::chrono::steady_clock::now() < limit;
       after = Holdings::now()) {
  }
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.resident_bytes, before.resident_bytes + kMemory)
      << (after.resident_bytes - before.resident_bytes) / 1024 << " KiB";
}

void reduce_once(ProcessGroup& group) {
  auto tensor = at::ones({64});
  group.all_reduce(tensor);
}

void expect_success(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << ": " << outcome.ending() << '\n' << outcome.output;
}

void churn_groups(bool with_shutdown) {
  RanksOptions harness;
  harness.limit = 55s;
  expect_success(observe_ranks(
      2,
      [&](const Environment& environment) {
        ::setenv("DDP_LOG_LEVEL", "warn", 1);
        ProcessGroupOptions options;
        options.environment = environment;
        expect_nothing_grows([&] {
          const auto group = init_process_group(options);
          reduce_once(*group);
          if (with_shutdown) group->shutdown();
        });
      },
      harness));
}

TEST(GroupChurn, TwoHundredGroupsLeaveNothingBehind) { churn_groups(true); }

TEST(GroupChurn, NorDoTheyWithoutAShutdown) { churn_groups(false); }

TEST(GroupChurn, TwoHundredSubGroupsLeaveNothingBehind) {
  run_ranks(2, [](const Group& group) {
    expect_nothing_grows([&] { reduce_once(*group->new_group({0, 1})); });
    expect_nothing_grows([&] { static_cast<void>(group->new_group({1})); });
  });
}

}  // namespace
}  // namespace ddp::testing
