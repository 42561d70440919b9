#include "base/stack_slot.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <stop_token>
#include <thread>
#include <vector>

namespace ddp {
namespace {

using namespace std::chrono_literals;
using Clock = StackSlot::Clock;

constexpr auto kPatience = 20s;  // for what takes microseconds

bool has_answer(StackSlot& slot, std::uint32_t request) { return slot.wait(request, Clock::now()); }

TEST(StackSlot, AnAnswerReachesTheAsker) {
  StackSlot slot;
  const auto request = slot.take().value();
  std::jthread([&] { slot.answer(request, 0); });
  ASSERT_TRUE(slot.wait(request, Clock::now() + kPatience));
  slot.give_back();
}

TEST(StackSlot, TheFramesBeginWhereTheThreadWas) {
  StackSlot slot;
  const auto request = slot.take().value();
  slot.answer(request, 0);
  ASSERT_TRUE(has_answer(slot, request));
  const auto all = slot.frames();
  ASSERT_GT(all.size(), 3u);
  slot.give_back();
  const auto again = slot.take().value();
  slot.answer(again, all[2]);
  ASSERT_TRUE(has_answer(slot, again));
  EXPECT_EQ(slot.frames(), std::vector(all.begin() + 2, all.end()));
}

TEST(StackSlot, IsInUseUntilItIsGivenBack) {
  StackSlot slot;
  const auto request = slot.take().value();
  EXPECT_FALSE(slot.take());
  slot.answer(request, 0);
  EXPECT_FALSE(slot.take());
  EXPECT_TRUE(has_answer(slot, request));
  EXPECT_FALSE(slot.take());
  slot.give_back();
  EXPECT_TRUE(slot.take());
}

TEST(StackSlot, AnAnswerAfterTheTimeIsNoAnswerToTheNextRequest) {
  StackSlot slot;
  const auto late = slot.take().value();
  EXPECT_FALSE(has_answer(slot, late));
  slot.answer(late, 0);
  const auto next = slot.take().value();
  slot.answer(late, 0);
  EXPECT_FALSE(has_answer(slot, next));
}

TEST(StackSlot, AnAnswerIsWrittenOnce) {
  StackSlot slot;
  const auto request = slot.take().value();
  slot.answer(request, 0);
  ASSERT_TRUE(has_answer(slot, request));
  const auto before = slot.frames();
  std::jthread([&] { slot.answer(request, 0); });
  EXPECT_EQ(slot.frames(), before);
}

TEST(StackSlot, OnlyARequestIsAnswered) {
  StackSlot slot;
  slot.answer(0, 0);
  EXPECT_TRUE(slot.take());
}

TEST(StackSlot, OfTwoTakersOneGetsIt) {
  StackSlot slot;
  int owners = 0;  // unguarded: the slot is the guard
  std::barrier together(2);
  const auto take_turns = [&] {
    together.arrive_and_wait();
    for (int turns = 0; turns < 100'000;) {
      if (!slot.take()) continue;
      EXPECT_EQ(++owners, 1);
      --owners;
      slot.give_back();
      ++turns;
    }
  };
  const std::jthread first(take_turns), second(take_turns);
}

std::uint32_t take_soon(StackSlot& slot) {
  for (const auto until = Clock::now() + kPatience; Clock::now() < until;) {
    if (const auto request = slot.take()) return *request;
  }
  ADD_FAILURE() << "the slot stays in use";
  return 0;
}

/// The asker goes at all moments, also while the answer is being written: whoever has the slot then has it alone.
TEST(StackSlot, AnAskerMayGoWhileTheAnswerIsWritten) {
  StackSlot slot;
  std::atomic<std::uint32_t> asked = 0;
  const std::jthread answerer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) slot.answer(asked, 0);
  });
  std::vector<std::uintptr_t> own;
  for (int i = 0; i < 5000 && !HasFailure(); ++i) {
    if (i > 0) {
      const auto request = take_soon(slot);
      asked = request;
      for (const auto until = Clock::now() + std::chrono::nanoseconds(i * 4); Clock::now() < until;) {
      }
      if (has_answer(slot, request)) slot.give_back();
    }
    const auto request = take_soon(slot);
    slot.answer(request, 0);  // by this thread, whose stack is always the same here
    ASSERT_TRUE(has_answer(slot, request)) << i;
    if (i == 0) own = slot.frames();
    EXPECT_EQ(slot.frames(), own) << i;
    slot.give_back();
  }
}

}  // namespace
}  // namespace ddp
