#include "comm/call_record.hpp"

#include <gtest/gtest.h>

namespace ddp::comm {
namespace {

TEST(CallRecord, NumbersCallsFromOne) {
  CallRecord record;
  EXPECT_EQ(record.entered(), 0U);
  EXPECT_EQ(record.enter("barrier", "", "").number, 1U);
  EXPECT_EQ(record.enter("barrier", "", "").number, 2U);
  EXPECT_EQ(record.entered(), 2U);
}

TEST(CallRecord, NamesACallWithItsLabelAndStep) {
  CallRecord record;
  EXPECT_EQ(record.enter("all_reduce", "64 floats", "").name(), "all_reduce #1");
  record.mark_step(5);
  EXPECT_EQ(record.enter("all_reduce", "64 floats", "bucket 1").name(), "all_reduce #2 \"bucket 1\", step 5");
}

TEST(CallRecord, TheStatusSaysWhatWasCompletedAndWhatIsUnderWay) {
  CallRecord record;
  EXPECT_EQ(record.status(), "completed no call yet, now not in a collective");
  record.mark_step(2);
  const auto first = record.enter("all_reduce", "64 floats", "");
  EXPECT_EQ(record.status().substr(0, 75),
            "completed no call yet, now in all_reduce #1 (64 floats) in step 2 since 0.0");
  record.complete(first);
  EXPECT_EQ(record.status(), "last completed all_reduce #1 (64 floats) in step 2, now not in a collective");
  record.mark_step(3);
  EXPECT_EQ(record.status(), "last completed all_reduce #1 (64 floats) in step 2, now not in a collective in step 3");
}

TEST(CallRecord, AMessageHasNoNumberAndIsListedWhileItIsUnderWay) {
  CallRecord record;
  Call message;
  message.operation = "recv from rank 1, message 3";
  message.amount = "64 floats";
  record.enter_message(message);
  EXPECT_EQ(record.entered(), 0U);
  EXPECT_EQ(record.status(),
            "completed no call yet, waiting in recv from rank 1, message 3 (64 floats), now not in a collective");
  record.complete(message);
  EXPECT_EQ(record.status(), "completed no call yet, now not in a collective");
}

TEST(CallRecord, TheLastCompletedIsTheOneWithTheHighestNumber) {
  CallRecord record;
  const auto first = record.enter("barrier", "", "a"), second = record.enter("barrier", "", "b");
  record.complete(second);
  record.complete(first);
  EXPECT_EQ(record.status(), "last completed barrier #2 \"b\", now not in a collective");
}

TEST(CallRecord, KnowsTheStepsOfRecentCalls) {
  CallRecord record;
  EXPECT_EQ(record.step_of(0), std::nullopt);
  record.enter("barrier", "", "");
  EXPECT_EQ(record.step_of(1), std::nullopt);
  for (int step = 0; step < 1000; ++step) {
    record.mark_step(step);
    record.enter("barrier", "", "");
  }
  EXPECT_EQ(record.step_of(1001), 999);
  EXPECT_EQ(record.step_of(900), 898);
  EXPECT_EQ(record.step_of(1002), std::nullopt);
  EXPECT_EQ(record.step_of(2), std::nullopt);
}

}  // namespace
}  // namespace ddp::comm
