#include "base/pinned_slot.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace ddp {
namespace {

using namespace std::chrono_literals;

TEST(PinnedSlot, HoldsOneObject) {
  PinnedSlot<int> slot;
  int one = 1, two = 2;
  EXPECT_TRUE(slot.put(&one));
  EXPECT_FALSE(slot.put(&two));
  EXPECT_TRUE(slot.holds(&one));
  int seen = 0;
  slot.read([&](const int& object) { seen = object; });
  EXPECT_EQ(seen, 1);
  const auto taken = slot.take(1s);
  EXPECT_EQ(taken.object, &one);
  EXPECT_TRUE(taken.is_unread);
  EXPECT_TRUE(slot.put(&two));
}

TEST(PinnedSlot, AnEmptyOneIsNotReadAndGivesNothing) {
  PinnedSlot<int> slot;
  slot.read([](const int&) { ADD_FAILURE(); });
  EXPECT_EQ(slot.take(1s).object, nullptr);
}

// As where a handler reads, in which the process ends.
TEST(PinnedSlot, AnObjectThatIsReadForEverIsNotGivenFreeButItsPlaceIs) {
  PinnedSlot<int> slot;
  int one = 1;
  slot.put(&one);
  slot.read([&](const int&) {
    const auto taken = slot.take(1ms);
    EXPECT_EQ(taken.object, &one);
    EXPECT_FALSE(taken.is_unread);
    slot.read([](const int&) { ADD_FAILURE() << "it has been taken out"; });
  });
}

struct Canary {
  int alive = 1;
  ~Canary() { alive = 0; }
};

TEST(PinnedSlot, ReadersSeeOnlyWhatLives) {
  PinnedSlot<Canary> slot;
  std::atomic<bool> is_over{false};
  std::atomic<int> seen{0}, dead{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!is_over) {
        slot.read([&](const Canary& canary) {
          ++seen;
          if (canary.alive != 1) ++dead;
        });
      }
    });
  }
  for (int i = 0; i < 2000 || seen < 100; ++i) {
    slot.put(new Canary);
    const auto taken = slot.take(5s);
    ASSERT_TRUE(taken.is_unread);
    delete taken.object;
  }
  is_over = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(dead, 0);
}

}  // namespace
}  // namespace ddp
