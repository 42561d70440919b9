// The two-minute check as a program's only work: DDP_CHECK, and ddprun --check.

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "process/launched.hpp"
#include "support/text.hpp"

namespace ddp::test {
namespace {

using testing::count;
using testing::expect_contains;

struct Ended {
  int code = -1;
  std::string text;
};

Ended run(std::vector<std::string> words, const char* check = nullptr) {
  Launched program(std::move(words), [check] {
    ::setenv("DDP_LOG_LEVEL", "error", 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    if (check != nullptr) ::setenv("DDP_CHECK", check, 1);
  });
  Ended ended{.code = program.finish(), .text = {}};
  ended.text = program.text();
  return ended;
}

TEST(Check, OfAProgramStartedAloneIsOnFourRanksOfItsOwn) {
  const auto [code, text] = run({CHECK_PROGRAM, "right"}, "1");
  EXPECT_EQ(code, 0) << text;
  expect_contains(text, {"4 ranks do what one process does", "passed"});
  EXPECT_EQ(count(text, "step    one process"), 1) << text;
  EXPECT_EQ(count(text, "\nok "), 6) << text;
  EXPECT_EQ(count(text, "training"), 0) << text;
}

TEST(Check, ThatFailsEndsWithOne) {
  const auto [code, text] = run({CHECK_PROGRAM, "sum"}, "1");
  EXPECT_EQ(code, 1) << text;
  expect_contains(text, {"FAIL  one process on the whole batch", "1 of 6 FAILED"});
  EXPECT_EQ(count(text, "spawn"), 0) << text;
}

TEST(Check, HasFiftyStepsInItsLongForm) {
  const auto [code, text] = run({CHECK_PROGRAM, "right"}, "long");
  EXPECT_EQ(code, 0) << text;
  expect_contains(text, {"\n    49 "});
  EXPECT_EQ(count(text, "\n    50 "), 0) << text;
}

TEST(Check, UnderDdprunIsOnFourRanksUnlessSaidOtherwise) {
  const auto four = run({DDPRUN, "--inherit-output", "--check", CHECK_PROGRAM, "right"});
  EXPECT_EQ(four.code, 0) << four.text;
  expect_contains(four.text, {"4 ranks do what", "passed"});
  const auto two = run({DDPRUN, "--inherit-output", "--check-long", "--nproc-per-node", "2", CHECK_PROGRAM, "sum"});
  EXPECT_EQ(two.code, 1) << two.text;
  expect_contains(two.text, {"2 ranks do what", "\n    49 ", "FAILED"});
}

TEST(Check, TellsWhatTheModelThrows) {
  const auto [code, text] = run({CHECK_PROGRAM, "throws"}, "1");
  EXPECT_EQ(code, 1) << text;
  expect_contains(text, {"the loss is broken"});
}

TEST(Check, IsNotDoneWhereNobodyAsks) {
  for (const char* check : {static_cast<const char*>(nullptr), "", "0"}) {
    const auto [code, text] = run({CHECK_PROGRAM, "right"}, check);
    EXPECT_EQ(code, 0) << text;
    EXPECT_EQ(text, "training\n");
  }
}

TEST(Check, OfAProgramThatHasNoneIsAnErrorInsteadOfATraining) {
  const auto [code, text] = run({CHECK_PROGRAM, "none"}, "1");
  EXPECT_EQ(code, 1) << text;
  expect_contains(text, {"trains without having called ddp::smoke_test_on_request()"});
  EXPECT_EQ(count(text, "training\n"), 0) << text;
}

TEST(Check, OfAnUnknownKindIsRefused) {
  const auto [code, text] = run({CHECK_PROGRAM, "right"}, "yes");
  EXPECT_EQ(code, 1) << text;
  expect_contains(text, {"DDP_CHECK=yes is no check"});
}

}  // namespace
}  // namespace ddp::test
