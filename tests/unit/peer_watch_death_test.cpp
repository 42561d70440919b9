// Real processes that die in real ways, and how soon the others know.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <set>
#include <thread>

#include "comm/watch_socket.hpp"
#include "peer_watch_fixture.hpp"

namespace ddp::comm {
namespace {

using namespace std::chrono_literals;
using testing::kLimit;
using testing::RecordedLink;
using watch::Clock;
using watch::Descriptor;

/// What a child writes to its parent.
struct Message {
  int failed = -1;
  Failure::Kind kind = Failure::Kind::raised;
  std::uint16_t port = 0;
  Clock::rep when = 0;
  char text[200] = {};
};

struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
  }
};

void put(const Descriptor& pipe, const Message& message) {
  if (write(pipe.get(), &message, sizeof message) != sizeof message) _exit(99);
}

/// The next message, or none when the other end is closed or silent for kLimit.
bool take(const Descriptor& pipe, Message& message) {
  pollfd entry{pipe.get(), POLLIN, 0};
  watch::poll_until({&entry, 1}, Clock::now() + kLimit);
  return entry.revents != 0 && read(pipe.get(), &message, sizeof message) == sizeof message;
}

/// What a rank does once all are there; returning ends it by _exit(0).
using Fate = std::function<void(WatchLink&)>;

/// Ranks as processes. Each joins, says so, meets its fate if it has one, else tells the
/// parent the failure that it hears of and stays until the parent closes its pipe.
class Processes {
 public:
  Processes(int world_size, int doomed, const Fate& fate) {
    up_ = std::vector<Pipe>(static_cast<std::size_t>(world_size));
    down_ = std::vector<Pipe>(static_cast<std::size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) run(rank, world_size, rank == doomed ? fate : Fate{});
      pids_.push_back(pid);
    }
    for (std::size_t rank = 0; rank < up_.size(); ++rank) {
      up_[rank].write_end.close();
      down_[rank].read_end.close();
    }
    Message port;
    EXPECT_TRUE(take(up_[0].read_end, port));
    for (int rank = 1; rank < world_size; ++rank) put(down_.at(static_cast<std::size_t>(rank)).write_end, port);
    Message ready;
    for (auto& pipe : up_) EXPECT_TRUE(take(pipe.read_end, ready));
  }

  ~Processes() {
    down_.clear();
    for (const pid_t pid : pids_) {
      kill(pid, SIGCONT);
      waitpid(pid, nullptr, 0);
    }
  }

  pid_t pid(int rank) const { return pids_.at(static_cast<std::size_t>(rank)); }

  void meet_fate(int rank) { put(down_.at(static_cast<std::size_t>(rank)).write_end, {}); }

  /// What all ranks but `silent` report; the slowest one's time after `start` must be short.
  Message common_failure(const std::set<int>& silent, Clock::time_point start) {
    Message common;
    for (int rank = 0; rank < static_cast<int>(pids_.size()); ++rank) {
      if (silent.contains(rank)) continue;
      Message message;
      EXPECT_TRUE(take(up_.at(static_cast<std::size_t>(rank)).read_end, message)) << "rank " << rank;
      const auto took = Clock::time_point(Clock::duration(message.when)) - start;
      EXPECT_LT(took, 2s) << "rank " << rank;
      slowest_ = std::max<Clock::duration>(slowest_, took);
      if (common.failed < 0) common = message;
      EXPECT_EQ(message.failed, common.failed) << "rank " << rank;
      EXPECT_STREQ(message.text, common.text) << "rank " << rank;
    }
    ::testing::Test::RecordProperty("microseconds", static_cast<int>(slowest_ / 1us));
    return common;
  }

 private:
  [[noreturn]] void run(int rank, int world_size, const Fate& fate) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(50);
    const Descriptor up = std::move(up_[static_cast<std::size_t>(rank)].write_end);
    const Descriptor down = std::move(down_[static_cast<std::size_t>(rank)].read_end);
    up_.clear();
    down_.clear();
    Message message;
    std::unique_ptr<WatchHub> hub;
    if (rank == 0) {
      hub = std::make_unique<WatchHub>(WatchHub::Options{.world_size = world_size});
      message.port = hub->port();
      put(up, message);
    } else if (!take(down, message)) {
      _exit(98);
    }
    RecordedLink link({.host = "127.0.0.1", .port = message.port, .rank = rank, .world_size = world_size},
                      [rank] { return std::to_string(rank); });
    put(up, {});
    if (fate) {
      if (take(down, message)) fate(*link);
      _exit(0);
    }
    const Failure failure = link.failure();
    message = {.failed = failure.rank, .kind = failure.kind, .when = Clock::now().time_since_epoch().count()};
    failure.text.copy(message.text, sizeof message.text - 1);
    put(up, message);
    take(down, message);  // until the parent has heard everybody
    _exit(0);
  }

  std::vector<Pipe> up_;
  std::vector<Pipe> down_;
  std::vector<pid_t> pids_;
  Clock::duration slowest_{};
};

class PeerWatchDeath : public ::testing::Test {
 protected:
  static Message after_kill(int victim) {
    Processes ranks(4, -1, {});
    const auto start = Clock::now();
    kill(ranks.pid(victim), SIGKILL);
    return ranks.common_failure({victim}, start);
  }
  static Message after_fate(int victim, const Fate& fate) {
    Processes ranks(3, victim, fate);
    const auto start = Clock::now();
    ranks.meet_fate(victim);
    return ranks.common_failure({victim}, start);
  }
};

TEST_F(PeerWatchDeath, AKilledRankIsKnownByItsNumber) {
  const Message heard = after_kill(2);
  EXPECT_EQ(heard.failed, 2);
  EXPECT_EQ(heard.kind, Failure::Kind::lost);
}

TEST_F(PeerWatchDeath, AKilledRankZeroIsKnownByItsNumber) {
  const Message heard = after_kill(0);
  EXPECT_EQ(heard.failed, 0);
  EXPECT_EQ(heard.kind, Failure::Kind::lost);
}

TEST_F(PeerWatchDeath, AnExitWithoutAGoodbyeIsALoss) {
  for (int victim : {0, 1}) {
    const Message heard = after_fate(victim, [](WatchLink&) { _exit(3); });
    EXPECT_EQ(heard.failed, victim);
    EXPECT_EQ(heard.kind, Failure::Kind::lost);
  }
}

TEST_F(PeerWatchDeath, TheTextOfAnUncaughtExceptionArrives) {
  static WatchLink* dying = nullptr;
  for (int victim : {0, 2}) {
    const Message heard = after_fate(victim, [](WatchLink& link) {
      dying = &link;
      std::set_terminate([] {
        try {
          throw;
        } catch (const std::exception& error) {
          dying->report(Failure::Kind::raised, error.what());
        }
        _exit(134);
      });
      std::thread([] { throw std::runtime_error("bad batch"); }).join();
    });
    EXPECT_EQ(heard.failed, victim);
    EXPECT_STREQ(heard.text, "bad batch");
  }
}

TEST_F(PeerWatchDeath, TheTextOfARankThatEndsAtOnceArrives) {
  for (int victim : {0, 2}) {
    const Message heard = after_fate(victim, [](WatchLink& link) {
      link.report(Failure::Kind::raised, "last words");
      kill(getpid(), SIGKILL);
    });
    EXPECT_EQ(heard.failed, victim);
    EXPECT_STREQ(heard.text, "last words");
  }
}

TEST_F(PeerWatchDeath, AStoppedProcessAnswersWithAnEmptyLine) {
  const Message heard = after_fate(2, [](WatchLink& link) {
    const auto all = link.ask_all(kLimit);
    std::string text = all[0] + all[1] + all[2];
    link.report(Failure::Kind::raised, text);
  });
  EXPECT_STREQ(heard.text, "012");

  Processes ranks(3, 2, [](WatchLink& link) {
    const auto all = link.ask_all(100ms);
    link.report(Failure::Kind::raised, "[" + all[0] + "|" + all[1] + "|" + all[2] + "]");
  });
  kill(ranks.pid(1), SIGSTOP);
  int status = 0;
  waitpid(ranks.pid(1), &status, WUNTRACED);
  const auto start = Clock::now();
  ranks.meet_fate(2);
  EXPECT_STREQ(ranks.common_failure({1, 2}, start).text, "[0||2]");
}

}  // namespace
}  // namespace ddp::comm
