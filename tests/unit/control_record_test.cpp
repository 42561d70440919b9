#include "reduce/control_record.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace ddp {
namespace {

// Three ranks' records, summed as a reduction would.
struct Ranks {
  std::vector<ControlRecord> records{{0, 3}, {1, 3}, {2, 3}};

  void exchange() {
    std::vector<float> sum(records[0].elements(), 0), own(records[0].elements());
    for (const auto& record : records) {
      record.write(own.data());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
    for (auto& record : records) record.read(sum.data());
  }
};

TEST(ControlRecord, TellsEveryRankEveryValueExactly) {
  Ranks ranks;
  ControlRecord::Field small = 0, large = 0;
  for (auto& record : ranks.records) {
    small = record.add("small", 1);
    large = record.add("large", 8);
  }
  const auto huge = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks.records[rank].set(small, 255 - rank);
    ranks.records[rank].set(large, huge - rank);
  }
  ranks.exchange();
  for (const auto& record : ranks.records)
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(record.value(small, rank), 255u - static_cast<unsigned>(rank));
      EXPECT_EQ(record.value(large, rank), huge - static_cast<unsigned>(rank));
    }
  EXPECT_EQ(ranks.records[2].sum(small), 255u + 254u + 253u);
  EXPECT_FALSE(ranks.records[1].is_same_on_all(large));
}

// An element holds at most 255: bfloat16, the least precise dtype, holds every integer up to 256.
TEST(ControlRecord, NeedsNoMoreThanEightBitsOfAnElement) {
  ControlRecord record(0, 1);
  record.set(record.add("number", 8), std::numeric_limits<std::uint64_t>::max());
  std::vector<float> elements(record.elements());
  record.write(elements.data());
  for (const auto element : elements) EXPECT_EQ(element, 255.0F);
}

TEST(ControlRecord, ShowsAFlagThatAnyRankRaised) {
  Ranks ranks;
  for (auto& record : ranks.records) record.add_flags(4);
  ranks.records[1].raise(2);
  ranks.records[2].raise(2);
  ranks.records[0].raise(3);
  ranks.exchange();
  for (const auto& record : ranks.records) {
    EXPECT_FALSE(record.raised(0));
    EXPECT_FALSE(record.raised(1));
    EXPECT_TRUE(record.raised(2));
    EXPECT_TRUE(record.raised(3));
  }
  for (auto& record : ranks.records) record.lower_flags();
  ranks.exchange();
  EXPECT_FALSE(ranks.records[0].raised(2));
}

TEST(ControlRecord, FindsFieldsByTheirNames) {
  ControlRecord record(0, 2);
  const auto stop = record.add("stop", 1);
  record.add("samples", 8);
  EXPECT_EQ(record.field("stop"), stop);
  EXPECT_THROW(record.field("step"), std::logic_error);
  EXPECT_THROW(record.add("stop", 2), std::logic_error);
}

TEST(ControlRecord, RefusesWhatDoesNotFit) {
  ControlRecord record(0, 2);
  const auto small = record.add("small", 1);
  record.set(small, 255);
  EXPECT_THROW(record.set(small, 256), std::logic_error);
  EXPECT_THROW(record.add("none", 0), std::logic_error);
  EXPECT_THROW(record.add("nine", 9), std::logic_error);
}

}  // namespace
}  // namespace ddp
