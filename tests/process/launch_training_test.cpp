// Jobs that train under ddprun: where they meet, and what becomes of them when ranks die.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/cores.hpp"
#include "base/descriptor.hpp"
#include "process/launched.hpp"
#include "support/temp_folder.hpp"

namespace ddp::test {
namespace {

using testing::TempFolder;

constexpr int kRanks = 4;
constexpr int kKills = 5;                               // DDP_TEST_KILLS chooses another number
constexpr std::chrono::microseconds kLongest{900'000};  // a start, the training, some saves, and a while at the end

int kills() {
  const auto* number = std::getenv("DDP_TEST_KILLS");
  return number ? std::atoi(number) : kKills;
}

Launched start(const TempFolder& folder, const std::string& name, int restarts) {
  const auto number = std::to_string(restarts);
  return Launched({DDPRUN, "--nproc-per-node", std::to_string(kRanks), "--max-restarts", number, TRAINING_PROGRAM,
                   folder / name, number},
                  [] { ::setenv("OMP_NUM_THREADS", "1", 1); });
}

std::string weights_in(const std::string& text) {
  const auto at = text.find("weights ");
  return at == std::string::npos ? "none" : text.substr(at, std::string("weights ").size() + 16);
}

/// The process of a rank in the newest attempt.
pid_t newest(const std::string& text, int rank) {
  const auto words = "rank " + std::to_string(rank) + " is process ";
  return std::stoi(text.substr(text.rfind(words) + words.size()));
}

bool has_ipv6() {
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const Descriptor socket(::socket(AF_INET6, SOCK_STREAM, 0));
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) == 0;
}

TEST(LaunchTraining, ARunThatLosesRanksAtAnyMomentEndsWithTheSameWeights) {
  const TempFolder folder;
  auto straight = start(folder, "straight.pt", 0);
  ASSERT_EQ(straight.finish(30s), 0) << straight.text();
  ASSERT_NE(weights_in(straight.text()), "none") << straight.text();

  std::mt19937 random(std::random_device{}());
  auto job = start(folder, "killed.pt", kills());
  for (int i = 0; i < kills(); ++i) {
    const auto text = job.read_until(" is process ", kRanks * (i + 1), 30s);
    const std::chrono::microseconds pause(random() % kLongest.count());
    const int rank = static_cast<int>(random() % kRanks);
    std::this_thread::sleep_for(pause);  // no synchronisation: the moment that is tried
    ASSERT_EQ(::kill(newest(text, rank), SIGKILL), 0) << i;
    job.read_until("restarting all ranks (restart " + std::to_string(i + 1) + " of", 1, 30s);
    const auto line = "rank " + std::to_string(rank) + " failed first";
    EXPECT_NE(job.text().rfind(line), std::string::npos) << "rank " << rank << " after " << pause.count() << " us:\n"
                                                         << job.text();
  }
  ASSERT_EQ(job.finish(30s), 0) << job.text();
  EXPECT_EQ(weights_in(job.text()), weights_in(straight.text()));
  EXPECT_EQ(job.occurrences("restarting all ranks"), kills());
}

// R68
TEST(LaunchTraining, AKilledRankIsNamedAndNothingIsLeft) {
  const TempFolder folder;
  auto job =
      Launched({DDPRUN, "--nproc-per-node", "4", TRAINING_PROGRAM, folder / "run.pt", "1"});  // waits near its end
  const auto text = job.read_until(" is process ", kRanks);
  std::vector<ProcessHandle> all;
  for (int rank = 0; rank < kRanks; ++rank) all.emplace_back(newest(text, rank));
  job.read_until("world size 4", 1);  // they have met
  const auto begin = Clock::now();
  all[2].kill();
  EXPECT_EQ(job.finish(), 128 + SIGKILL) << job.text();
  EXPECT_LT(Clock::now() - begin, 4s);
  EXPECT_NE(job.text().find("ddprun: rank 2 failed first, "), std::string::npos) << job.text();
  EXPECT_NE(job.text().find("): killed by SIGKILL (signal 9), not by ddprun"), std::string::npos) << job.text();
  EXPECT_EQ(job.occurrences("most likely because of the first") + job.occurrences("because it lost a peer"), 3)
      << job.text();
  for (const auto& process : all) EXPECT_TRUE(process.ends_by(Clock::now()));
}

// R61
TEST(LaunchTraining, RanksMeetAtAnyNameOfThisMachine) {
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  for (const std::string address : {"localhost", "127.0.0.1", "::1", static_cast<const char*>(host)}) {
    if (address == "::1" && !has_ipv6()) continue;
    const TempFolder folder;
    auto job =
        Launched({DDPRUN, "--nproc-per-node", "2", "--master-addr", address, TRAINING_PROGRAM, folder / "run.pt", "0"});
    EXPECT_EQ(job.finish(30s), 0) << address << ":\n" << job.text();
    EXPECT_NE(weights_in(job.text()), "none") << job.text();
  }
}

// R74
TEST(LaunchTraining, ThreadsAreTheAllowedCoresByTheRanks) {
  const TempFolder folder;
  auto job = Launched({DDPRUN, "--nproc-per-node", "2", TRAINING_PROGRAM, folder / "run.pt", "0"},
                      [] { ::unsetenv("OMP_NUM_THREADS"); });
  EXPECT_EQ(job.finish(), 0) << job.text();
  const int threads = threads_per_rank(allowed_cores(), 2);
  EXPECT_EQ(job.occurrences("threads a rank: " + std::to_string(threads)), 1) << job.text();
}

}  // namespace
}  // namespace ddp::test
