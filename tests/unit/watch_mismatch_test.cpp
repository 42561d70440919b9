#include "comm/watch_mismatch.hpp"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "peer_watch_fixture.hpp"

namespace ddp::comm {
namespace {

using testing::contains;
using testing::kLimit;
using testing::World;
using watch::decode_calls;
using watch::encode_calls;
using watch::Waits;

MadeCall planned(std::uint64_t number) { return {number, "plan", "bucket #" + std::to_string(number)}; }
MadeCall by_user(std::uint64_t number) { return {number, "signatures", "mean #" + std::to_string(number)}; }

Waits waits_of(const std::vector<std::vector<MadeCall>>& calls) {
  std::vector<int> names;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) names.push_back(static_cast<int>(rank) * 10);
  Waits waits(names);
  for (std::size_t rank = 0; rank < calls.size(); ++rank) waits.set(static_cast<int>(rank), calls[rank]);
  return waits;
}

TEST(Waits, DifferentKindsUnderOneNumberAreAMismatchThatNamesAll) {
  EXPECT_EQ(waits_of({{planned(5)}, {by_user(5)}, {planned(5)}}).mismatch(),
            "the ranks wait in different calls, which never meet\n"
            "  ranks 0, 20: bucket #5\n"
            "  rank 10: mean #5");
}

TEST(Waits, ThoseOutsideOfTheModelProbablyHadFewerBatches) {
  const auto in_model = [](std::uint64_t number) {
    return MadeCall{number, "plan", std::string("bucket") + watch::kByModel};
  };
  const MadeCall outside{5, "signatures", std::string("mean") + watch::kByProgram};
  const MadeCall after{5, "signatures", std::string("mean") + watch::kByProgramAfterItsData};
  const auto reason = [](const std::vector<std::vector<MadeCall>>& calls) {
    const auto text = waits_of(calls).mismatch().value();
    return text.substr(0, text.find('\n'));
  };
  const std::string begin = "the ranks wait in different calls, which never meet: probably ";
  EXPECT_EQ(reason({{in_model(5)}, {outside}}),
            begin + "rank 10 had fewer batches and left the loop earlier, or skipped a backward()");
  EXPECT_EQ(reason({{in_model(5)}, {outside}, {after}, {in_model(5)}}),
            begin + "ranks 10, 20 had fewer batches and left the loop earlier, or skipped a backward()");
  EXPECT_EQ(reason({{outside}, {in_model(5)}, {in_model(5)}}),
            begin + "rank 0 has made a call under an `if (rank == 0)`, or has had fewer batches");
  EXPECT_EQ(reason({{after}, {in_model(5)}}),
            begin + "rank 0 has made a call under an `if (rank == 0)`, or has had fewer batches");
}

TEST(Waits, OneKindIsNoMismatchHoweverLongAllWait) {
  EXPECT_EQ(waits_of({{planned(5)}, {planned(5)}}).mismatch(), std::nullopt);
}

TEST(Waits, NobodyIsAccusedWhileARankIsNotWaiting) {
  EXPECT_EQ(waits_of({{planned(5)}, {by_user(5)}, {}}).mismatch(), std::nullopt);
}

TEST(Waits, ARankThatIsAheadIsComparedByTheCallItMadeBefore) {
  EXPECT_EQ(waits_of({{planned(6), planned(5)}, {by_user(5)}}).mismatch(),
            "the ranks wait in different calls, which never meet\n"
            "  rank 0: bucket #5; now in bucket #6\n"
            "  rank 10: mean #5");
  EXPECT_EQ(waits_of({{planned(6), by_user(5)}, {by_user(5)}}).mismatch(), std::nullopt);
}

TEST(Waits, ARankThatIsFarAheadIsNotComparedAtAll) {
  EXPECT_EQ(waits_of({{planned(9), planned(8)}, {by_user(5), planned(4)}}).mismatch(), std::nullopt);
}

TEST(Waits, CallsTravelAsTheyAre) {
  const std::vector<MadeCall> calls{by_user(7), planned(6), {5, "", ""}};
  const auto read = decode_calls(encode_calls(calls));
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 3u);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ((*read)[i].number, calls[i].number);
    EXPECT_EQ((*read)[i].kind, calls[i].kind);
    EXPECT_EQ((*read)[i].text, calls[i].text);
  }
  EXPECT_EQ(decode_calls(encode_calls({{1, "", std::string(9999, 'x')}}))->at(0).text.size(), 256u);
  EXPECT_EQ(decode_calls(encode_calls(std::vector<MadeCall>(99)))->size(), 8u);
  EXPECT_TRUE(decode_calls("")->empty());
}

TEST(Waits, BodiesOfAnotherFormAreRefusedAndNeverMore) {
  std::mt19937 random(20240611);
  const std::string good = encode_calls({by_user(7), planned(6)});
  for (std::size_t length = 1; length < good.size(); ++length) {
    const auto read = decode_calls(good.substr(0, length));
    EXPECT_TRUE(!read || read->size() == 1) << length;
  }
  for (int round = 0; round < 5000; ++round) {
    auto bytes = good;
    for (int i = 0; i < 4; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % (bytes.size() + 1));
    const auto read = decode_calls(bytes);
    if (!read) continue;
    EXPECT_LE(read->size(), 8u);
    for (const auto& call : *read) EXPECT_LE(call.text.size() + call.kind.size(), 512u);
  }
}

TEST(PeerWatch, TellsEveryRankOfCallsThatNeverMeet) {
  World world(3);
  world[2]->waits_in({by_user(4)});
  world[0]->waits_in({planned(4)});
  static_cast<void>(world[0]->ask_all(kLimit));  // behind the others' words
  EXPECT_EQ(world[0].failure_count(), 0u);
  world[1]->waits_in({planned(5), planned(4)});
  const auto failure = world.common_failure();
  EXPECT_EQ(failure.kind, Failure::Kind::mismatch);
  EXPECT_TRUE(contains(failure.text, "\n  rank 1: bucket #4; now in bucket #5\n  rank 2: mean #4"));
}

TEST(PeerWatch, ARankThatHasLeftOrIsLostIsNotAccused) {
  World world(3);
  world[0]->waits_in({planned(4)});
  world[2]->waits_in({by_user(4)});
  world[2]->leave(3);
  world[0].left(1);
  world[1]->waits_in({planned(4)});
  static_cast<void>(world[1]->ask_all(kLimit));
  EXPECT_EQ(world[0].failure_count() + world[1].failure_count(), 0u);
}

TEST(PeerWatch, WhatARankWaitedInBeforeDoesNotCount) {
  World world(2);
  world[0]->waits_in({planned(4)});
  world[0]->waits_in({by_user(9), planned(8)});
  world[1]->waits_in({by_user(9), planned(8)});
  static_cast<void>(world[1]->ask_all(kLimit));
  EXPECT_EQ(world[0].failure_count() + world[1].failure_count(), 0u);
}

TEST(PeerWatch, ManyThreadsMayWaitInManyCalls) {
  World world(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&, rank] {
        for (std::uint64_t number = 1; number <= 200; ++number) world[rank]->waits_in({by_user(number)});
      });
    }
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(world[3]->ask_all(kLimit).at(0), "line 0");
  EXPECT_EQ(world[0].failure_count(), 0u);
}

}  // namespace
}  // namespace ddp::comm
