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

TEST(CallRecord, TheFirstOpenCallComesWithThoseBeforeIt) {
  CallRecord record;
  EXPECT_TRUE(record.first_open(3).empty());
  std::vector<Call> calls;
  for (const char* label : {"a", "b", "c", "d"}) calls.push_back(record.enter("barrier", "", label));
  const auto labels = [&](std::size_t before) {
    std::string text;
    for (const auto& call : record.first_open(before)) text += call.label;
    return text;
  };
  EXPECT_EQ(labels(3), "a");
  record.complete(calls[0]);
  record.complete(calls[2]);
  EXPECT_EQ(labels(3), "ba");
  EXPECT_EQ(labels(0), "b");
  record.complete(calls[1]);
  EXPECT_EQ(labels(3), "dcba");
  EXPECT_EQ(labels(2), "dcb");
  record.complete(calls[3]);
  EXPECT_EQ(labels(3), "");
  for (int i = 0; i < 1000; ++i) record.complete(record.enter("barrier", "", ""));
  record.enter("barrier", "", "last");
  EXPECT_EQ(record.first_open(0).at(0).number, 1005U);
}

TEST(CallRecord, PlannedCallsAreOfOneKindOnlyWithTheSameOperationAndAmount) {
  CallRecord record;
  const auto kind = [&](const char* operation, const char* amount, const char* label, Meeting meeting) {
    return record.enter(operation, amount, label, meeting).kind();
  };
  const auto bucket = kind("all_reduce", "64 floats", "bucket 1", Meeting::plan);
  EXPECT_EQ(bucket, kind("all_reduce", "64 floats", "bucket 2", Meeting::plan));
  EXPECT_NE(bucket, kind("all_reduce", "65 floats", "bucket 1", Meeting::plan));
  EXPECT_NE(bucket, kind("broadcast", "64 floats", "bucket 1", Meeting::plan));
  EXPECT_NE(bucket, kind("all_reduce", "64 floats", "bucket 1", Meeting::signatures));
  EXPECT_NE(bucket, kind("monitored_barrier", "", "", Meeting::roll_call));
  EXPECT_EQ(kind("all_reduce", "1 float", "", Meeting::signatures), kind("barrier", "", "", Meeting::signatures))
      << "signatures are compared on their own";
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
  EXPECT_EQ(record.step_of(1002), 999) << "the next call";
  EXPECT_EQ(record.step_of(1003), std::nullopt);
  EXPECT_EQ(record.step_of(2), std::nullopt);
}

}  // namespace
}  // namespace ddp::comm
