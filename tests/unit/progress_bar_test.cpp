#include "ddp/progress_bar.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "support/terminal.hpp"
#include "support/text.hpp"

namespace ddp {
namespace {

using ::ddp::testing::contains;
using namespace std::chrono_literals;

long drawings(const std::string& text) { return std::count(text.begin(), text.end(), '%'); }

TEST(ProgressLine, ShowsShareRateAndRemainingTime) {
  EXPECT_EQ(progress_line(0, 400, 0s), "   0% [....................] 0/400");
  EXPECT_EQ(progress_line(100, 400, 50s), "  25% [#####...............] 100/400 2/s 2:30 left");
  EXPECT_EQ(progress_line(400, 400, 200s), " 100% [####################] 400/400 2/s in 3:20");
  EXPECT_EQ(progress_line(1, 10001, 1s), "   0% [....................] 1/10001 1/s 2:46:40 left");
}

TEST(ProgressLine, SurvivesOddNumbers) {
  EXPECT_EQ(progress_line(0, 0, 0s), " 100% [####################] 0/0");
  EXPECT_EQ(progress_line(5, 4, 1s), " 100% [####################] 5/4 5/s in 0:01");
  EXPECT_LE(progress_line(~std::size_t{0} / 2, ~std::size_t{0}, 1s).size(), 79u);
}

TEST(ProgressBar, DrawsOnATerminalAndEndsItsLine) {
  ::ddp::testing::Terminal terminal;
  {
    ProgressBar bar(3, 0, {.descriptor = terminal.descriptor(), .interval = 0ms});
    for (int i = 0; i < 3; ++i) bar.advance();
  }
  const auto text = terminal.text();
  EXPECT_TRUE(contains(text, "1/3"));
  EXPECT_TRUE(contains(text, "2/3"));
  EXPECT_TRUE(contains(text, "3/3"));
  EXPECT_TRUE(text.ends_with('\n')) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(ProgressBar, DrawsTheFirstAndTheLastStateHoweverFastTheSteps) {
  ::ddp::testing::Terminal terminal;
  {
    ProgressBar bar(1000, 0, {.descriptor = terminal.descriptor(), .interval = 1h});
    for (int i = 0; i < 1000; ++i) bar.advance();
  }
  const auto text = terminal.text();
  EXPECT_EQ(drawings(text), 2);
  EXPECT_TRUE(contains(text, "1/1000"));
  EXPECT_TRUE(contains(text, "1000/1000"));
}

TEST(ProgressBar, LeavesTheCursorAtTheLineStartSoThatALogLineReplacesIt) {
  ::ddp::testing::Terminal terminal;
  ProgressBar bar(3, 0, {.descriptor = terminal.descriptor()});
  bar.advance();
  EXPECT_EQ(::write(terminal.descriptor(), "log", 3), 3);
  EXPECT_TRUE(terminal.text().ends_with("\rlog"));
}

TEST(ProgressBar, IsSilentAfterFinish) {
  ::ddp::testing::Terminal terminal;
  {
    ProgressBar bar(3, 0, {.descriptor = terminal.descriptor(), .interval = 0ms});
    bar.finish();
    bar.advance();
    bar.finish();
  }
  EXPECT_EQ(drawings(terminal.text()), 1);
}

TEST(ProgressBar, IsSilentWhereThereIsNoTerminal) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    ProgressBar(3, 0, {.descriptor = ends[1], .interval = 0ms}).advance();
  }
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0) << "something was drawn";
  ::close(ends[0]);
}

TEST(ProgressBar, IsSilentOnOtherRanks) {
  ::ddp::testing::Terminal terminal;
  {
    ProgressBar(3, 1, {.descriptor = terminal.descriptor(), .interval = 0ms}).advance();
  }
  EXPECT_EQ(terminal.text(), "");
}

}  // namespace
}  // namespace ddp
