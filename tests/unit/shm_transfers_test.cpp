// Collectives over shared memory, with ranks as threads over one mapping.
#include "comm/shm/transfers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "comm/shm/mail.hpp"
#include "comm/shm/mapping.hpp"

namespace ddp::comm::shm {
namespace {

constexpr std::uint64_t kRegion = std::uint64_t{64} << 20;
bool never() { return false; }

/// One rank's view of the memory that all share.
struct Rank {
  Rank(const Mapping& mapping, int number)
      : rank(number),
        ranks(static_cast<int>(mapping.layout().ranks)),
        memory(mapping.data()),
        region(mapping.region(number)),
        board(mapping.data(), number, ranks, {.spins = 10, .yields = 5}),
        transfers(board, mapping.data()) {}

  void enter(Call& call) {
    while (!board.has_room()) std::this_thread::yield();
    transfers.enter(call);
  }
  void make(Call& call) {
    enter(call);
    EXPECT_TRUE(transfers.run(call, never));
  }
  float* floats() const { return reinterpret_cast<float*>(region); }

  const int rank, ranks;
  std::byte* const memory;
  std::byte* const region;
  Board board;
  Transfers transfers;
};

void on_ranks(int ranks, const std::function<void(Rank&)>& body) {
  const auto mapping = Mapping::create(Board::bytes_for(ranks), ranks, kRegion);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Rank one(mapping, rank);
      body(one);
    });
  for (auto& thread : threads) thread.join();
}

Call reduction_of(float* data, std::size_t count, bool is_shared) {
  Call call;
  call.terms = {Kind::reduce, Type::float32, Combine::sum, count * sizeof(float)};
  call.data = reinterpret_cast<std::byte*>(data);
  call.is_shared = is_shared;
  return call;
}

float value_of(int rank, std::size_t i, int round) {
  return 0.37F * static_cast<float>(rank + 1) + static_cast<float>((i + static_cast<std::size_t>(round)) % 1013);
}

float sum_of(int ranks, std::size_t i, int round) {
  float sum = value_of(0, i, round);
  for (int rank = 1; rank < ranks; ++rank) sum += value_of(rank, i, round);
  return sum;
}

std::size_t wrong_in(const float* data, std::size_t count, int ranks, int round) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += data[i] != sum_of(ranks, i, round);
  return wrong;
}

class Reductions : public ::testing::TestWithParam<int> {};

// From one element in an entry to many pieces of a stage; in rank order, so equal to the bit.
TEST_P(Reductions, SumInRankOrderWhereverTheDataLies) {
  on_ranks(GetParam(), [](Rank& one) {
    int round = 0;
    for (const std::size_t count : {std::size_t{1}, kPayload / 4, kPayload / 4 + 1, std::size_t{10000}, kStage / 4,
                                    std::size_t{3} * kStage / 4 + 77}) {
      std::vector<float> own(count);
      for (auto* data : {own.data(), one.floats()}) {
        ++round;
        for (std::size_t i = 0; i < count; ++i) data[i] = value_of(one.rank, i, round);
        auto call = reduction_of(data, count, data != own.data());
        one.make(call);
        EXPECT_EQ(call.trouble, "");
        EXPECT_EQ(wrong_in(data, count, one.ranks, round), 0U) << count << " of rank " << one.rank;
      }
    }
  });
}

TEST_P(Reductions, OfSharedAndPrivateDataAtOnceAreRight) {
  on_ranks(GetParam(), [](Rank& one) {
    const std::size_t count = 50000;
    std::vector<float> own(count);
    auto* const data = one.rank == 0 ? one.floats() : own.data();
    for (std::size_t i = 0; i < count; ++i) data[i] = value_of(one.rank, i, 3);
    auto call = reduction_of(data, count, one.rank == 0);
    one.make(call);
    EXPECT_EQ(wrong_in(data, count, one.ranks, 3), 0U);
  });
}

// More calls than slots are under way before any of them is run, and a rank that never looks is done for.
TEST_P(Reductions, AreDoneByWhoeverLooks) {
  on_ranks(GetParam(), [](Rank& one) {
    const std::size_t count = 4096;
    constexpr int kCalls = static_cast<int>(kSlots);
    std::vector<Call> calls;
    for (int n = 0; n < kCalls; ++n) {
      auto* const data = one.floats() + static_cast<std::size_t>(n) * count;
      for (std::size_t i = 0; i < count; ++i) data[i] = value_of(one.rank, i, n);
      calls.push_back(reduction_of(data, count, true));
    }
    for (auto& call : calls) one.enter(call);
    // Rank 0 runs them; the others see the results without having done anything for them.
    for (auto& call : calls) {
      const auto is_done = [&] { return one.board.is_done(call.number, 1); };
      EXPECT_TRUE(one.rank == 0 ? one.transfers.run(call, never) : one.board.wait(is_done, never));
    }
    for (int n = 0; n < kCalls; ++n)
      EXPECT_EQ(wrong_in(one.floats() + static_cast<std::size_t>(n) * count, count, one.ranks, n), 0U);
  });
}

// Mixed kinds and sizes for many rounds, with ranks that dawdle at random places.
TEST_P(Reductions, AndMovesAndMeetingsInTurnStayRightForThousandsOfCalls) {
  on_ranks(GetParam(), [](Rank& one) {
    std::mt19937 same(7), own(static_cast<unsigned>(one.rank));
    std::vector<float> mine(40000);
    std::size_t wrong = 0;
    for (int round = 0; round < 1500; ++round) {
      const auto count = std::size_t{1} + same() % (round % 50 == 0 ? 40000 : 3000);
      const auto kind = same() % 4;
      for (auto pauses = own() % 8; pauses > 6; --pauses) std::this_thread::yield();
      auto* const data = kind == 0 ? mine.data() : one.floats();
      for (std::size_t i = 0; i < count; ++i) data[i] = value_of(one.rank, i, round);
      if (kind == 2) {
        Call call;
        one.make(call);
      } else if (kind == 3) {
        std::vector<float> all(count * static_cast<std::size_t>(one.ranks));
        Call call;
        call.terms.kind = Kind::move;
        call.stream = reinterpret_cast<std::byte*>(data);
        call.stream_bytes = count * sizeof(float);
        for (int rank = 0; rank < one.ranks; ++rank) {
          call.parts.push_back({0, call.stream_bytes});
          call.targets.push_back(
              {reinterpret_cast<std::byte*>(all.data() + static_cast<std::size_t>(rank) * count), call.stream_bytes});
        }
        one.make(call);
        for (int rank = 0; rank < one.ranks; ++rank)
          for (std::size_t i = 0; i < count; ++i)
            wrong += all[static_cast<std::size_t>(rank) * count + i] != value_of(rank, i, round);
      } else {
        auto call = reduction_of(data, count, kind == 1);
        one.make(call);
        wrong += wrong_in(data, count, one.ranks, round);
      }
    }
    EXPECT_EQ(wrong, 0U) << "of rank " << one.rank;
  });
}

TEST_P(Reductions, ThatDifferAreTroubleOnEveryRankAndTheNextIsFine) {
  on_ranks(GetParam(), [](Rank& one) {
    auto call = reduction_of(one.floats(), one.rank == 0 ? 5000 : 5001, true);
    one.make(call);
    EXPECT_NE(call.trouble.find("rank 0 reduces 20000 bytes"), std::string::npos) << call.trouble;
    EXPECT_NE(call.trouble.find("rank 1 reduces 20004 bytes"), std::string::npos) << call.trouble;
    one.floats()[0] = value_of(one.rank, 0, 0);
    auto next = reduction_of(one.floats(), 1, true);
    one.make(next);
    EXPECT_EQ(one.floats()[0], sum_of(one.ranks, 0, 0));
  });
}

INSTANTIATE_TEST_SUITE_P(Of, Reductions, ::testing::Values(2, 3, 4));

// Every pair of ranks has a part of its own length, some empty, some longer than a stage.
TEST(Moves, BringEachPartToItsRank) {
  on_ranks(3, [](Rank& one) {
    const auto length = [](int from, int to) {
      return std::uint64_t{1} * static_cast<std::uint64_t>((from * 3 + to) % 4) * (kStage / 3 + 5);
    };
    Call call;
    call.terms.kind = Kind::move;
    std::vector<std::byte> stream;
    std::vector<std::vector<std::byte>> taken(3);
    for (int other = 0; other < 3; ++other) {
      const auto begin = stream.size();
      for (std::uint64_t i = 0; i < length(one.rank, other); ++i)
        stream.push_back(static_cast<std::byte>(one.rank * 50 + other * 10 + static_cast<int>(i % 7)));
      call.parts.push_back({begin, stream.size()});
      auto& target = taken[static_cast<std::size_t>(other)];
      target.resize(length(other, one.rank));
      call.targets.push_back({target.data(), target.size()});
    }
    call.stream = stream.data();
    call.stream_bytes = stream.size();
    one.make(call);
    EXPECT_EQ(call.trouble, "");
    for (int from = 0; from < 3; ++from) {
      std::size_t wrong = 0;
      const auto& target = taken[static_cast<std::size_t>(from)];
      for (std::size_t i = 0; i < target.size(); ++i)
        wrong += target[i] != static_cast<std::byte>(from * 50 + one.rank * 10 + static_cast<int>(i % 7));
      EXPECT_EQ(wrong, 0U) << "from " << from << " at " << one.rank;
    }
  });
}

TEST(Moves, OfAnotherLengthThanExpectedAreTrouble) {
  on_ranks(2, [](Rank& one) {
    std::vector<std::byte> stream(100), target(one.rank == 0 ? 100 : 99);
    Call call;
    call.terms.kind = Kind::move;
    call.stream = stream.data();
    call.stream_bytes = stream.size();
    call.parts = {{0, 100}, {0, 100}};
    call.targets = {{target.data(), target.size()}, {target.data(), target.size()}};
    one.make(call);
    EXPECT_EQ(call.trouble.empty(), one.rank == 0) << call.trouble;
  });
}

TEST(Transfers, GiveUpWhenTheyAreToldTo) {
  on_ranks(2, [](Rank& one) {
    if (one.rank == 1) return;  // never comes
    auto call = reduction_of(one.floats(), 5000, true);
    one.enter(call);
    int asked = 0;
    EXPECT_FALSE(one.transfers.run(call, [&] { return ++asked == 2; }));
    EXPECT_EQ(asked, 2);
  });
}

// A sleeper is woken by what it waits for: hundreds of times faster than by the end of its sleep.
TEST(Board, WakesWhoSleeps) {
  on_ranks(2, [](Rank& one) {
    constexpr int kRounds = 500;
    const auto start = std::chrono::steady_clock::now();
    Board board(one.memory, one.rank, one.ranks, {});
    for (int round = 0; round < kRounds; ++round) {
      const auto step = board.step();
      EXPECT_TRUE(board.wait([&] { return board.all_reached(step); }, never));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(10) * kRounds / 4);
  });
}

TEST(Mail, BringsMessagesByTheirTagsInAnyOrder) {
  const auto mapping = Mapping::create(4096, 2, kRegion);
  Mail sender({mapping.region(0), mapping.region(1)}, 0), receiver({mapping.region(0), mapping.region(1)}, 1);
  const std::vector<std::uint64_t> sizes{1, 0, 200, 3 * Mail::kLetterBytes + 9, Mail::kLetterBytes, 5'000'000};
  std::vector<std::thread> threads;
  for (std::uint32_t tag = 0; tag < sizes.size(); ++tag) {
    threads.emplace_back([&, tag] {
      const std::vector<std::byte> sent(sizes[tag], static_cast<std::byte>(tag + 1));
      EXPECT_TRUE(sender.send(sent.data(), sent.size(), 1, tag, never));
    });
    threads.emplace_back([&, tag] {
      std::vector<std::byte> received(sizes[tag]);
      EXPECT_TRUE(receiver.receive(received.data(), received.size(), 0, tag, never));
      EXPECT_EQ(received, std::vector<std::byte>(sizes[tag], static_cast<std::byte>(tag + 1)));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Mail, OfAnotherLengthIsAnErrorAndTheNextArrives) {
  const auto mapping = Mapping::create(4096, 2, kRegion);
  Mail sender({mapping.region(0), mapping.region(1)}, 0), receiver({mapping.region(0), mapping.region(1)}, 1);
  std::byte data[8]{};
  EXPECT_TRUE(sender.send(data, 8, 1, 5, never));
  EXPECT_TRUE(sender.send(data, 4, 1, 6, never));
  EXPECT_THROW(receiver.receive(data, 7, 0, 5, never), std::length_error);
  EXPECT_TRUE(receiver.receive(data, 4, 0, 6, never));
}

TEST(Mail, NobodyTakesAnAnswerThatNeverComes) {
  const auto mapping = Mapping::create(4096, 2, kRegion);
  Mail mail({mapping.region(0), mapping.region(1)}, 1);
  std::byte data[1]{};
  int asked = 0;
  EXPECT_FALSE(mail.receive(data, 1, 0, 1, [&] { return ++asked == 2; }));
}

}  // namespace
}  // namespace ddp::comm::shm
