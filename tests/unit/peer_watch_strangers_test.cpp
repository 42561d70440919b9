// What else may come to the hub's port: scanners, other programs, garbage, half a hello.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <random>
#include <thread>

#include "comm/watch_frame.hpp"
#include "comm/watch_socket.hpp"
#include "peer_watch_fixture.hpp"

namespace ddp::comm {
namespace {

using namespace std::chrono_literals;
using namespace watch;
using testing::kLimit;
using testing::World;
using Lines = std::vector<std::string>;

/// A plain connection to the hub.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : socket_(connect_to("127.0.0.1", port, Clock::now() + kLimit).socket) {
    EXPECT_TRUE(socket_);
  }

  void say(std::string_view bytes) {
    while (!bytes.empty()) {
      const Transfer transfer = send_some(socket_, bytes);
      if (transfer.over) return;
      if (transfer.again) wait_for(POLLOUT);
      bytes.remove_prefix(transfer.bytes);
    }
  }
  void end_of_words() { shutdown(socket_.get(), SHUT_WR); }

  /// All that the hub says until it closes; fails when it does not close.
  std::string heard() {
    std::string text;
    std::array<char, 4096> buffer;
    for (;;) {
      if (!wait_for(POLLIN)) {
        ADD_FAILURE() << "the hub keeps the connection";
        return text;
      }
      const Transfer transfer = receive_some(socket_, buffer);
      if (transfer.over) return text;
      text.append(buffer.data(), transfer.bytes);
    }
  }

  bool wait_for(short what) {
    pollfd entry{socket_.get(), what, 0};
    poll_until({&entry, 1}, Clock::now() + kLimit);
    return entry.revents != 0;
  }

 private:
  Descriptor socket_;
};

std::string good_hello(int rank, int world_size) {
  return encode_hello({.rank = static_cast<std::uint32_t>(rank),
                       .world_size = static_cast<std::uint32_t>(world_size),
                       .token = "job 7",
                       .name = "test"});
}

void expect_undisturbed(World& world) {
  EXPECT_EQ(world[0]->ask_all(kLimit), (Lines{"line 0", "line 1"}));
  EXPECT_EQ(world[0].failure_count() + world[1].failure_count(), 0u);
}

void expect_undisturbed_by_third(World& world) {
  EXPECT_EQ(world[0]->ask_all(kLimit), (Lines{"line 0", "line 1", ""}));
  EXPECT_EQ(world[0].failure_count() + world[1].failure_count(), 0u);
}

TEST(WatchHub, ClosesConnectionsOfOtherPrograms) {
  World world(2);
  for (const std::string& words : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("SSH-2.0-scan\r\n"),
                                   std::string(1, '\0'), std::string(1 << 20, '\xff'), std::string("DDPWATCh")}) {
    Stranger stranger(world.hub().port());
    stranger.say(words);
    EXPECT_EQ(stranger.heard(), "");
  }
  expect_undisturbed(world);
}

TEST(WatchHub, IsNotDisturbedByAPortScan) {
  World world(2);
  for (int i = 0; i < 100; ++i) Stranger scan(world.hub().port());
  expect_undisturbed(world);
}

TEST(WatchHub, ClosesAHelloWithHugeLengths) {
  World world(3, 2);
  std::string hello = good_hello(2, 3);
  for (std::size_t at = 20; at < 24; ++at) hello[at] = '\xff';  // the two lengths of the head
  Stranger stranger(world.hub().port());
  stranger.say(hello);
  EXPECT_EQ(stranger.heard(), "");
}

TEST(WatchHub, TellsAnOtherVersionSo) {
  World world(3, 2);
  std::string hello = good_hello(2, 3);
  hello[8] = 99;
  Stranger stranger(world.hub().port());
  stranger.say(hello);
  FrameReader frames;
  frames.feed(stranger.heard());
  const auto frame = frames.next();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->type, FrameType::reject);
  EXPECT_TRUE(testing::contains(frame->body, "another version"));
}

TEST(WatchHub, ClosesHalfAHelloAfterItsLimit) {
  WatchHub hub({.world_size = 1, .token = "job 7", .hello_limit = 30ms});
  Stranger silent(hub.port());
  Stranger slow(hub.port());
  slow.say("DDPWA");
  EXPECT_EQ(silent.heard(), "");
  EXPECT_EQ(slow.heard(), "");
}

TEST(WatchHub, AdmitsRanksWhileStrangersHoldConnectionsOpen) {
  World world(2, 0);
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Stranger>(world.hub().port()));
  world.join(0);
  world.join(1);
  expect_undisturbed(world);
}

TEST(WatchHub, AHelloInSinglePiecesIsUnderstood) {
  World world(3, 2);
  Stranger piecemeal(world.hub().port());
  for (char byte : good_hello(2, 3)) piecemeal.say({&byte, 1});
  ASSERT_TRUE(piecemeal.wait_for(POLLIN));
  piecemeal.say(encode_frame(FrameType::goodbye, BodyWriter().u64(3).bytes()));
  EXPECT_EQ(world[0].left(1), (std::map<int, std::uint64_t>{{2, 3}}));
}

TEST(WatchHub, WordsThatFollowTheHelloAtOnceAreHeard) {
  World world(3, 2);
  Stranger hasty(world.hub().port());
  hasty.say(good_hello(2, 3) + encode_frame(FrameType::report, BodyWriter().u8(0).text("at once").bytes()));
  EXPECT_EQ(world[0].failure().text, "at once");
}

TEST(WatchHub, ARankThatSendsGarbageIsLost) {
  for (const std::string& garbage : {BodyWriter().u32(0xffffffff).u8(3).bytes(), BodyWriter().u32(0).u8(200).bytes()}) {
    World world(3, 2);
    Stranger third(world.hub().port());
    third.say(good_hello(2, 3) + garbage);
    const Failure failure = world[1].failure();
    EXPECT_EQ(failure.rank, 2);
    EXPECT_EQ(failure.kind, Failure::Kind::lost);
  }
}

TEST(WatchHub, MalformedBodiesOfARankDoNoHarm) {
  World world(3, 2);
  Stranger third(world.hub().port());
  third.say(good_hello(2, 3));
  for (int type = 1; type <= static_cast<int>(FrameType::closing); ++type) {
    if (type == static_cast<int>(FrameType::goodbye)) continue;
    for (const char* body : {"", "\x7f", "\x7f\x7f\x7f\x7f\x7f\x7f"}) {
      third.say(encode_frame(static_cast<FrameType>(type), body));
    }
  }
  third.say(encode_frame(FrameType::goodbye, BodyWriter().u64(3).bytes()));  // behind all of them
  EXPECT_EQ(world[0].left(1), (std::map<int, std::uint64_t>{{2, 3}}));
  EXPECT_EQ(world[0]->ask_all(kLimit), (Lines{"line 0", "line 1", ""}));
  EXPECT_EQ(world[0].failure_count(), 0u);
}

TEST(WatchHub, SurvivesRandomBytes) {
  World world(2);
  std::mt19937 random(20240607);
  const std::string hello = good_hello(1, 2);
  for (int round = 0; round < 400; ++round) {
    std::string words = round % 2 == 0 ? std::string() : hello.substr(0, random() % hello.size());
    const std::size_t extra = random() % 300;
    for (std::size_t i = 0; i < extra; ++i) words += static_cast<char>(random());
    Stranger stranger(world.hub().port());
    stranger.say(words);
    stranger.end_of_words();
    FrameReader frames;
    frames.feed(stranger.heard());
    const auto frame = frames.next();
    EXPECT_TRUE(!frame || frame->type == FrameType::reject) << "round " << round;
  }
  expect_undisturbed(world);
}

TEST(WatchHub, RandomFramesOfARankDoNoHarm) {
  World world(3, 2);
  Stranger third(world.hub().port());
  third.say(good_hello(2, 3));
  std::mt19937 random(20240612);
  for (int round = 0; round < 3000; ++round) {
    auto type = static_cast<FrameType>(1 + random() % static_cast<unsigned>(FrameType::closing));
    if (type == FrameType::goodbye || type == FrameType::report) type = FrameType::waiting;
    std::string body(random() % 80, '\0');
    for (char& byte : body) byte = static_cast<char>(round % 2 == 0 ? random() : random() % 3);
    third.say(encode_frame(type, body));
  }
  third.say(encode_frame(FrameType::goodbye, BodyWriter().u64(3).bytes()));  // behind all of them
  EXPECT_EQ(world[0].left(1), (std::map<int, std::uint64_t>{{2, 3}}));
  expect_undisturbed_by_third(world);
}

TEST(FrameReader, CutsAStreamIntoTheSameFramesWhereverItIsSplit) {
  const std::string stream = encode_frame(FrameType::status, "one") + encode_frame(FrameType::closing) +
                             encode_frame(FrameType::report, std::string(1000, 'r'));
  for (std::size_t piece = 1; piece < 20; ++piece) {
    FrameReader reader;
    Lines bodies;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::string_view(stream).substr(at, piece));
      while (const auto frame = reader.next()) bodies.push_back(frame->body);
    }
    EXPECT_EQ(bodies, (Lines{"one", "", std::string(1000, 'r')})) << "pieces of " << piece;
    EXPECT_FALSE(reader.broken());
  }
}

TEST(BoundedText, NeverCutsInsideACharacter) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "\u00e4\u20ac";
  for (std::size_t limit = 12; limit < text.size(); ++limit) {
    const std::string cut = bounded_text(text, limit);
    EXPECT_LE(cut.size(), limit);
    const std::size_t kept = cut.find(" [");
    ASSERT_NE(kept, std::string::npos);
    EXPECT_NE(static_cast<unsigned char>(text[kept]) & 0xc0, 0x80) << "limit " << limit;
  }
  EXPECT_EQ(bounded_text(text, text.size()), text);
}

TEST(ConnectTo, WaitsForAHostThatIsNotListeningYet) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const auto port = ntohs(address.sin_port);
  EXPECT_TRUE(testing::contains(connect_to("127.0.0.1", port, Clock::now() + 30ms).error, "refused"));
  std::thread late([&] { EXPECT_EQ(listen(socket.get(), 1), 0); });
  EXPECT_TRUE(connect_to("127.0.0.1", port, Clock::now() + kLimit).socket);
  late.join();
}

}  // namespace
}  // namespace ddp::comm
