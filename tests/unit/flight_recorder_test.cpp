#include "comm/flight_recorder.hpp"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/phase.hpp"

namespace ddp::comm {
namespace {

Signature floats(std::int64_t count, Operation operation = Operation::all_reduce) {
  Signature signature(operation);
  signature.dtype = static_cast<std::int64_t>(at::kFloat);
  signature.dimensions = 1;
  signature.sizes.fill(1);
  signature.sizes[0] = count;
  return signature;
}

Call entered(FlightRecorder& recorder, const Signature& signature, std::string label = {},
             Meeting meeting = Meeting::signatures) {
  Call call{signature, std::move(label), meeting};
  recorder.enter(call);
  return call;
}

Call barrier(FlightRecorder& recorder, std::string label = {}) {
  return entered(recorder, Signature(Operation::barrier), std::move(label));
}

TEST(FlightRecorder, NumbersCallsFromOne) {
  FlightRecorder recorder;
  EXPECT_EQ(recorder.entered(), 0U);
  EXPECT_EQ(barrier(recorder).number, 1U);
  EXPECT_EQ(barrier(recorder).number, 2U);
  EXPECT_EQ(recorder.entered(), 2U);
}

TEST(FlightRecorder, NamesACallWithItsLabelAndStep) {
  FlightRecorder recorder;
  EXPECT_EQ(entered(recorder, floats(64)).name(), "all_reduce #1");
  recorder.mark_step(5);
  EXPECT_EQ(entered(recorder, floats(64), "bucket 1").name(), "all_reduce #2 \"bucket 1\", step 5");
}

TEST(FlightRecorder, TheStatusSaysWhatWasCompletedAndWhatIsUnderWay) {
  FlightRecorder recorder;
  EXPECT_EQ(recorder.status(), "completed no call yet, now not in a collective");
  recorder.mark_step(2);
  const auto first = entered(recorder, floats(64));
  EXPECT_EQ(recorder.status().substr(0, 75),
            "completed no call yet, now in all_reduce #1 (64 floats) in step 2 since 0.0");
  recorder.complete(first);
  EXPECT_EQ(recorder.status(), "last completed all_reduce #1 (64 floats) in step 2, now not in a collective");
  recorder.mark_step(3);
  EXPECT_EQ(recorder.status(), "last completed all_reduce #1 (64 floats) in step 2, now not in a collective in step 3");
}

TEST(FlightRecorder, TheStatusNamesThePhaseOfWhoIsInNoCollective) {
  FlightRecorder recorder;
  const Phase outer("epoch");
  {
    const Phase inner("loading data");
    EXPECT_EQ(recorder.status().substr(0, 79),
              "completed no call yet, now not in a collective, in \"loading data\" since 0.0 s");
  }
  EXPECT_EQ(recorder.status().substr(0, 65), "completed no call yet, now not in a collective, in \"epoch\" since ");
}

TEST(FlightRecorder, AMessageHasNoNumberAndIsListedWhileItIsUnderWay) {
  FlightRecorder recorder;
  Call message{floats(64, Operation::message)};
  message.peer = 1;
  message.message = 3;
  recorder.enter(message);
  EXPECT_EQ(recorder.entered(), 0U);
  EXPECT_EQ(recorder.status(),
            "completed no call yet, waiting in recv from rank 1, message 3 (64 floats), now not in a collective");
  recorder.complete(message);
  EXPECT_EQ(recorder.status(), "completed no call yet, now not in a collective");
}

TEST(FlightRecorder, TheLastCompletedIsTheOneWithTheHighestNumber) {
  FlightRecorder recorder;
  const auto first = barrier(recorder, "a"), second = barrier(recorder, "b");
  recorder.complete(second);
  recorder.complete(first);
  EXPECT_EQ(recorder.status(), "last completed barrier #2 \"b\", now not in a collective");
}

TEST(FlightRecorder, TheFirstOpenCallComesWithThoseBeforeIt) {
  FlightRecorder recorder;
  EXPECT_TRUE(recorder.first_open(3).empty());
  std::vector<Call> calls;
  for (const char* label : {"a", "b", "c", "d"}) calls.push_back(barrier(recorder, label));
  const auto labels = [&](std::size_t before) {
    std::string text;
    for (const auto& call : recorder.first_open(before)) text += call.label;
    return text;
  };
  EXPECT_EQ(labels(3), "a");
  recorder.complete(calls[0]);
  recorder.complete(calls[2]);
  EXPECT_EQ(labels(3), "ba");
  EXPECT_EQ(labels(0), "b");
  recorder.complete(calls[1]);
  EXPECT_EQ(labels(3), "dcba");
  EXPECT_EQ(labels(2), "dcb");
  recorder.complete(calls[3]);
  EXPECT_EQ(labels(3), "");
  for (int i = 0; i < 5000; ++i) recorder.complete(barrier(recorder));
  barrier(recorder, "last");
  EXPECT_EQ(recorder.first_open(0).at(0).number, 5005U);
}

TEST(FlightRecorder, PlannedCallsAreOfOneKindOnlyWithTheSameOperationAndAmount) {
  FlightRecorder recorder;
  const auto kind = [&](const Signature& signature, const char* label, Meeting meeting) {
    return entered(recorder, signature, label, meeting).kind();
  };
  const auto bucket = kind(floats(64), "bucket 1", Meeting::plan);
  EXPECT_EQ(bucket, kind(floats(64), "bucket 2", Meeting::plan));
  EXPECT_NE(bucket, kind(floats(65), "bucket 1", Meeting::plan));
  EXPECT_NE(bucket, kind(floats(64, Operation::broadcast), "bucket 1", Meeting::plan));
  EXPECT_NE(bucket, kind(floats(64), "bucket 1", Meeting::signatures));
  EXPECT_NE(bucket, kind(Signature(Operation::monitored_barrier), "", Meeting::roll_call));
  EXPECT_EQ(kind(floats(1), "", Meeting::signatures), kind(Signature(Operation::barrier), "", Meeting::signatures))
      << "signatures are compared on their own";
}

TEST(FlightRecorder, KnowsTheStepsOfRecentCalls) {
  FlightRecorder recorder;
  EXPECT_EQ(recorder.step_of(0), std::nullopt);
  barrier(recorder);
  EXPECT_EQ(recorder.step_of(1), std::nullopt);
  for (int step = 0; step < 5000; ++step) {
    recorder.mark_step(step);
    barrier(recorder);
  }
  EXPECT_EQ(recorder.step_of(5001), 4999);
  EXPECT_EQ(recorder.step_of(4000), 3998);
  EXPECT_EQ(recorder.step_of(5002), 4999) << "the next call";
  EXPECT_EQ(recorder.step_of(5003), std::nullopt);
  EXPECT_EQ(recorder.step_of(2), std::nullopt);
}

TEST(FlightRecorder, KeepsAtLeastTwoThousandCallsWithTheirTimesStepAndPhase) {
  FlightRecorder recorder;
  recorder.mark_step(7);
  const auto before = std::chrono::steady_clock::now();
  {
    const Phase phase("validation");
    for (int i = 0; i < 3000; ++i) {
      const auto call = entered(recorder, floats(i), std::string(200, 'x'));
      if (i % 2 == 0) recorder.start(call.ticket);
      if (i % 4 == 0) recorder.complete(call);
    }
  }
  const auto after = std::chrono::steady_clock::now();
  const auto calls = recorder.calls();
  ASSERT_GE(calls.size(), 2000U);
  ASSERT_EQ(calls.back().call.number, 3000U);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto& [call, phase, started, ended] = calls[i];
    const auto index = static_cast<std::int64_t>(call.number) - 1;
    ASSERT_EQ(call.number, calls[0].call.number + i);
    ASSERT_EQ(call.amount(), std::to_string(index) + " floats");
    ASSERT_EQ(call.label, std::string(54, 'x') + " [... cut]");
    ASSERT_EQ(call.step, 7);
    ASSERT_STREQ(phase, "validation");
    ASSERT_TRUE(call.queued >= before && call.queued <= after);
    ASSERT_EQ(started.has_value(), index % 2 == 0);
    ASSERT_EQ(ended.has_value(), index % 4 == 0);
    if (ended) {
      ASSERT_TRUE(*ended >= *started && *ended <= after);
    }
  }
}

TEST(FlightRecorder, ShapesSurviveUpToSixDimensionsAndTheRestIsMultiplied) {
  FlightRecorder recorder;
  const auto shape_of = [&](const std::vector<std::int64_t>& sizes) {
    entered(recorder, Signature(Operation::all_gather, at::empty(sizes, at::kMeta)));
    return recorder.calls().back().call.signature.shape();
  };
  EXPECT_EQ(shape_of({}), (std::vector<std::int64_t>{}));
  EXPECT_EQ(shape_of({2, 3, 4, 5, 6, 7}), (std::vector<std::int64_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(shape_of({2, 3, 4, 5, 6, 7, 2, 3}), (std::vector<std::int64_t>{2, 3, 4, 5, 6, 42}));
}

TEST(FlightRecorder, AReaderBesideTheWritersSeesWholeCallsAlone) {
  FlightRecorder recorder;
  std::atomic<bool> is_over{false};
  const auto write = [&](int peer) {
    for (std::int64_t i = 1; !is_over; ++i) {
      Call message{floats(1000 * i + peer, Operation::message), std::to_string(1000 * i + peer)};
      message.peer = peer;
      message.message = i;
      recorder.enter(message);
      recorder.complete(message);
    }
  };
  std::thread first(write, 1), second(write, 2);
  std::size_t seen = 0;
  while (seen < 100'000)
    for (const auto& recorded : recorder.calls()) {
      ++seen;
      const auto expected = 1000 * recorded.call.message + recorded.call.peer;
      EXPECT_EQ(recorded.call.signature.sizes[0], expected);
      EXPECT_EQ(recorded.call.label, std::to_string(expected));
    }
  is_over = true;
  first.join();
  second.join();
}

TEST(FlightRecorder, TheProgramsOwnStepWins) {
  FlightRecorder recorder;
  recorder.mark_step(3);
  EXPECT_EQ(barrier(recorder).step, 3);
  ddp::step(40);
  EXPECT_EQ(barrier(recorder).step, 40);
  ddp::step(-1);
  EXPECT_EQ(barrier(recorder).step, 3);
}

TEST(Call, HasADeadlineHoweverLongItsTimeout) {
  FlightRecorder recorder;
  const auto call = barrier(recorder);
  EXPECT_EQ(deadline_of(call, std::chrono::seconds(5)), call.queued + std::chrono::seconds(5));
  EXPECT_GT(deadline_of(call, std::chrono::milliseconds::max()), call.queued + std::chrono::hours(24 * 300));
}

TEST(Signature, TravelsOnALabelAndBack) {
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{}, {0}, {5}, {1LL << 40, 3}, std::vector<std::int64_t>(14, 2)})
    for (const int first_differs : {0, 1}) {
      if (sizes.empty() && first_differs == 1) continue;
      Signature signature(Operation::reduce,
                          at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16)));
      signature.first_differs = first_differs;
      signature.root = 255;
      signature.number = 1LL << 50;
      const auto back = signatures_in({label_of(signature)}).at(0);
      EXPECT_EQ(back.text(std::vector<int>(256, 7)), signature.text(std::vector<int>(256, 7)));
      EXPECT_EQ(back.shape(), signature.shape());
      auto other = signature;
      other.number = 1;
      EXPECT_TRUE(label_of(signature).agrees_with(label_of(other)));
      if (!sizes.empty()) {
        ++other.sizes[0];
        EXPECT_EQ(label_of(signature).agrees_with(label_of(other)), first_differs == 1);
      }
      other = signature;
      other.root = 254;
      EXPECT_FALSE(label_of(signature).agrees_with(label_of(other)));
    }
}

}  // namespace
}  // namespace ddp::comm
