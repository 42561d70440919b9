#include "comm/shm/hand_over.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "comm/shm/hand_over_wire.hpp"
#include "shm_child.hpp"
#include "shm_failure.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"

namespace ddp::comm::shm {
namespace {

using namespace std::chrono_literals;
using ddp::testing::contains;
using testing::Child;
using testing::failure_of;
using testing::kLimit;
using testing::Line;
using testing::open_descriptors;
using watch::Clock;
using watch::Descriptor;

constexpr std::uint64_t kRegion = 64 << 20;

/// A connection that says what a test likes.
class Stranger {
 public:
  explicit Stranger(const std::string& name) : socket_(packet_socket()) {
    const auto address = abstract_address(name);
    while (connect(socket_.get(), address->get(), address->length) != 0) {
      if (errno != EAGAIN) throw std::runtime_error("connect");
      watch::poll_until({}, Clock::now() + 1ms);  // until the server has accepted some
    }
  }

  void say(std::string_view bytes) const {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  /// Whether the server closed the connection without a word.
  bool was_turned_away() const {
    pollfd entry{socket_.get(), POLLIN, 0};
    watch::poll_until({&entry, 1}, Clock::now() + kLimit);
    char byte = 0;
    return entry.revents != 0 && recv(socket_.get(), &byte, 1, 0) <= 0;
  }

 private:
  Descriptor socket_;
};

/// A server that serves on a thread of its own.
class Serving {
 public:
  explicit Serving(int ranks, uid_t user = geteuid())
      : mapping_(Mapping::create(1, ranks, kRegion)),
        server_(mapping_.file(), mapping_.layout(), user),
        thread_([this] {
          while (!stop_) server_.serve(5ms);
        }) {}
  ~Serving() { stop(); }

  int stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return server_.served();
  }
  const Mapping& mapping() const { return mapping_; }
  const Offer& offer() const { return server_.offer(); }

 private:
  Mapping mapping_;
  HandOverServer server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: uses the others
};

std::string request_for(const Offer& offer, std::uint32_t rank) {
  Request request{.magic = kMagic, .version = kVersion, .rank = rank};
  std::copy(offer.token.begin(), offer.token.end(), request.token.begin());
  return {reinterpret_cast<const char*>(&request), sizeof request};
}

TEST(Offer, TravelsAsText) {
  const Serving serving(2);
  const Offer copy = Offer::parsed(serving.offer().text());
  EXPECT_EQ(copy.name, serving.offer().name);
  EXPECT_EQ(copy.token, serving.offer().token);
  EXPECT_EQ(copy.token.size(), kTokenLength);
  EXPECT_GE(copy.name.size(), kTokenLength);
}

TEST(Offer, IsRefusedWhenItIsMalformed) {
  const std::string token(kTokenLength, 'a');
  EXPECT_EQ(Offer::parsed("name:" + token).name, "name");
  for (const std::string& text :
       {std::string(), std::string(":"), token, ":" + token, "name:" + token + "a", "name:" + token.substr(1),
        "name:" + token.substr(1) + "g", std::string(200, 'n') + ":" + token, "a:b:" + token}) {
    EXPECT_THROW(Offer::parsed(text), Unavailable) << text;
  }
}

TEST(Offer, IsAnotherOneForEachServer) {
  const Serving first(2);
  const Serving second(2);
  EXPECT_NE(first.offer().name, second.offer().name);
  EXPECT_NE(first.offer().token, second.offer().token);
}

TEST(HandOver, GivesEveryProcessTheSameMemory) {
  Mapping mapping = Mapping::create(1, 4, kRegion);
  HandOverServer server(mapping.file(), mapping.layout());
  std::vector<std::unique_ptr<Child>> children;
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    children.push_back(std::make_unique<Child>([&, rank](Line& line) {
      auto [file, layout] = take_over(server.offer(), rank, kLimit);
      EXPECT_EQ(layout, mapping.layout());
      EXPECT_EQ(fcntl(file.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
      const Mapping own = Mapping::open(std::move(file), layout);
      own.region(static_cast<int>(rank))[0] = std::byte(rank);
      line.say("taken");
    }));
  }
  const auto begin = Clock::now();
  server.serve(kLimit);
  EXPECT_LT(Clock::now() - begin, kLimit / 2);  // it ends with the last one
  EXPECT_EQ(server.served(), 3);
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    Child& child = *children[rank - 1];
    EXPECT_EQ(child->hear(), "taken") << "rank " << rank;
    EXPECT_EQ(child.status(), 0) << "rank " << rank;
    EXPECT_EQ(mapping.region(static_cast<int>(rank))[0], std::byte(rank)) << "rank " << rank;
  }
}

TEST(HandOver, EndsAtOnceWhereThereIsNobodyElse) {
  const Mapping mapping = Mapping::create(1, 1, kRegion);
  HandOverServer server(mapping.file(), mapping.layout());
  const auto begin = Clock::now();
  server.serve(kLimit);
  EXPECT_LT(Clock::now() - begin, kLimit / 2);
}

TEST(HandOver, CountsARankThatAsksAgainOnce) {
  Serving serving(3);
  static_cast<void>(take_over(serving.offer(), 1, kLimit));
  static_cast<void>(take_over(serving.offer(), 1, kLimit));
  EXPECT_EQ(serving.stop(), 1);
}

TEST(HandOver, RefusesAWrongTokenAndServesTheRightOneMeanwhile) {
  Serving serving(4);
  for (std::size_t at = 0; at < kTokenLength; ++at) {
    Offer wrong = serving.offer();
    wrong.token[at] = wrong.token[at] == '0' ? '1' : '0';
    EXPECT_TRUE(contains(failure_of([&] { take_over(wrong, 1, kLimit); }), "refused to hand over")) << at;
  }
  Offer none = serving.offer();
  none.token.clear();
  EXPECT_TRUE(contains(failure_of([&] { take_over(none, 1, kLimit); }), "refused to hand over"));
  const Stranger open(serving.offer().name);
  EXPECT_EQ(take_over(serving.offer(), 2, kLimit).second, serving.mapping().layout());
  EXPECT_EQ(serving.stop(), 1);
}

TEST(HandOver, TurnsAwayWhatIsMalformed) {
  Serving serving(2);
  const std::string good = request_for(serving.offer(), 1);
  std::string other_version = good;
  other_version[8] = 99;
  std::string other_magic = good;
  other_magic[0] = 'X';
  for (const std::string& words :
       {good.substr(1), good + "x", std::string(1, 'x'), std::string(100000, '\0'), other_version, other_magic,
        request_for(serving.offer(), 2), request_for(serving.offer(), 0xffffffff), std::string("GET / HTTP/1.1\r\n")}) {
    const Stranger stranger(serving.offer().name);
    stranger.say(words);
    EXPECT_TRUE(stranger.was_turned_away()) << words.substr(0, 40);
  }
  std::mt19937 random(20240701);
  for (int round = 0; round < 200; ++round) {
    std::string words = good;
    words[random() % words.size()] ^= static_cast<char>(1 + random() % 255);
    if (words.substr(12, 4) != good.substr(12, 4)) continue;  // rank 0's own number is a right one
    const Stranger stranger(serving.offer().name);
    stranger.say(words);
    EXPECT_TRUE(stranger.was_turned_away()) << "round " << round;
  }
  static_cast<void>(take_over(serving.offer(), 1, kLimit));
  EXPECT_EQ(serving.stop(), 1);
}

TEST(HandOver, IsNotDelayedByThoseWhoSayNothing) {
  Serving serving(2);
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 150; ++i) silent.push_back(std::make_unique<Stranger>(serving.offer().name));
  const auto begin = Clock::now();
  static_cast<void>(take_over(serving.offer(), 1, kLimit));
  EXPECT_LT(Clock::now() - begin, 2s);
  EXPECT_TRUE(silent.front()->was_turned_away());  // the oldest make room
}

TEST(HandOver, IsRefusedToAnotherUser) {
  Serving serving(2, geteuid() + 1);  // who is not this one
  EXPECT_TRUE(contains(failure_of([&] { take_over(serving.offer(), 1, kLimit); }), "refused to hand over"));
  EXPECT_EQ(serving.stop(), 0);
}

TEST(HandOver, IsNotBelievedOfAnotherUser) {
  Serving serving(2);
  const std::string own = std::to_string(geteuid());
  const std::string other = std::to_string(geteuid() + 1);
  EXPECT_EQ(failure_of([&] { take_over(serving.offer(), 1, kLimit, geteuid() + 1); }),
            "rank 0's memory is offered by user " + own + ", not by user " + other);
}

TEST(HandOver, FailsAtOnceWhereNobodyListens) {
  Offer offer;
  {
    const Serving serving(2);
    offer = serving.offer();
  }
  const auto begin = Clock::now();
  EXPECT_EQ(failure_of([&] { take_over(offer, 1, kLimit); }),
            "rank 0's memory is not on this host: Connection refused");
  EXPECT_LT(Clock::now() - begin, 1s);
  EXPECT_TRUE(contains(failure_of([&] { take_over({.name = "", .token = ""}, 1, kLimit); }), "cannot be read"));
}

TEST(HandOver, FailsWithinItsLimitWhereNobodyAnswers) {
  const Mapping mapping = Mapping::create(1, 2, kRegion);
  const HandOverServer silent(mapping.file(), mapping.layout());
  EXPECT_EQ(failure_of([&] { take_over(silent.offer(), 1, 30ms); }),
            "rank 0 did not hand over its memory within 30 ms");
}

TEST(HandOver, FailsWithinItsLimitWhereTooManyWait) {
  const Mapping mapping = Mapping::create(1, 2, kRegion);
  const HandOverServer silent(mapping.file(), mapping.layout());
  const auto address = abstract_address(silent.offer().name);
  std::vector<Descriptor> waiting;
  do {
    waiting.push_back(packet_socket());
  } while (connect(waiting.back().get(), address->get(), address->length) == 0);
  ASSERT_EQ(errno, EAGAIN);  // the kernel takes no more
  EXPECT_EQ(failure_of([&] { take_over(silent.offer(), 1, 30ms); }),
            "rank 0 did not hand over its memory within 30 ms");
}

TEST(HandOver, HasASocketWithoutAFile) {
  const Serving serving(2);
  EXPECT_TRUE(contains(ddp::testing::contents("/proc/net/unix"), " @" + serving.offer().name + "\n"));
}

TEST(HandOver, LeavesNoDescriptorBehind) {
  const auto before = open_descriptors();
  {
    Serving serving(2);
    const Stranger silent(serving.offer().name);
    static_cast<void>(take_over(serving.offer(), 1, kLimit));
    EXPECT_GT(open_descriptors(), before);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(HandOver, SurvivesThatDescriptorsRunOut) {
  Child child([](Line& line) {
    const Mapping mapping = Mapping::create(1, 2, kRegion);
    HandOverServer server(mapping.file(), mapping.layout());
    const Stranger silent(server.offer().name);
    const Stranger asks(server.offer().name);
    asks.say(request_for(server.offer(), 1));
    const rlimit few{64, 64};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<Descriptor> all;
    for (Descriptor file(dup(mapping.file())); file; file = Descriptor(dup(mapping.file())))
      all.push_back(std::move(file));
    server.serve(20ms);
    EXPECT_EQ(server.served(), 0);
    all.pop_back();  // one for the silent, which has to make room
    server.serve(kLimit);
    EXPECT_EQ(server.served(), 1);
    line.say("done");
  });
  EXPECT_EQ(child->hear(), "done");
  EXPECT_EQ(child.status(), 0);
}

/// Becomes readable once the last process that holds the file has let it go.
Descriptor end_of(const Descriptor& file) {
  Descriptor watcher(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  EXPECT_GE(inotify_add_watch(watcher.get(), path.c_str(), IN_DELETE_SELF), 0);
  return watcher;
}

bool is_readable(const Descriptor& descriptor, std::chrono::milliseconds limit) {
  pollfd entry{descriptor.get(), POLLIN, 0};
  watch::poll_until({&entry, 1}, Clock::now() + limit);
  return entry.revents != 0;
}

TEST(HandOver, TheMemoryOutlivesItsCreatorAndEndsWithItsLastUser) {
  Child creator([](Line& line) {
    const Mapping mapping = Mapping::create(1, 3, kRegion);
    HandOverServer server(mapping.file(), mapping.layout());
    mapping.region(0)[1] = std::byte{11};
    line.say(server.offer().text());
    server.serve(kLimit);
    line.hear();
  });
  const Offer offer = Offer::parsed(creator->hear());
  Child user([&](Line& line) {
    auto [file, layout] = take_over(offer, 1, kLimit);
    Mapping mapping = Mapping::open(std::move(file), layout);
    line.say("taken");
    EXPECT_EQ(line.hear(), "the creator is dead");
    EXPECT_EQ(mapping.region(0)[1], std::byte{11});
    mapping.populate(mapping.offset_of(mapping.region(1)), 1 << 20);
    std::memset(mapping.region(1), 7, 1 << 20);
    line.say("used");
    line.hear();
  });
  EXPECT_EQ(user->hear(), "taken");
  const Descriptor end = end_of(take_over(offer, 2, kLimit).first);
  creator.kill();
  EXPECT_TRUE(WIFSIGNALED(creator.status()));
  user->say("the creator is dead");
  EXPECT_EQ(user->hear(), "used");
  EXPECT_FALSE(is_readable(end, 0ms));
  user.kill();
  user.status();
  EXPECT_TRUE(is_readable(end, kLimit));
}

}  // namespace
}  // namespace ddp::comm::shm
