#include "ddp/run.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "ddp/error.hpp"
#include "ddp/log.hpp"
#include "support/temp_folder.hpp"
#include "unit/log_heard.hpp"

namespace ddp {
namespace {

struct Ended {
  int code;
  std::string text;  // on standard error
};

Ended run_captured(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  const int code = run(body);
  return {code, ::testing::internal::GetCapturedStderr()};
}

TEST(Run, ReturnsZeroAndSaysNothingAfterABodyThatReturns) {
  const auto ended = run_captured([] {});
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.text, "");
}

TEST(Run, PrintsAnExceptionAndReturnsOne) {
  const auto ended = run_captured([] { throw std::runtime_error("no such file"); });
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.text, "no such file\n");
}

TEST(Run, PrintsAnErrorWithItsRankOnce) {
  const auto ended =
      run_captured([] { throw GradientError({2, 4}, "reducer", "no gradient for fc.weight", "use it"); });
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.text, "rank 2 of 4: reducer: no gradient for fc.weight; use it\n");
}

TEST(Run, MarksALostPeerAsAnotherRanksFailure) {
  const auto ended = run_captured([] { throw PeerLostError({0, 4}, "barrier #1", "rank 3 died", "", 3); });
  EXPECT_EQ(ended.code, 76);
  EXPECT_EQ(ended.text, "rank 0 of 4: barrier #1: rank 3 died (this rank ends because of rank 3)\n");
}

TEST(Run, TakesATimeoutBeforeTheRanksHaveMetForAnyFailure) {
  EXPECT_EQ(run_captured([] { throw TimeoutError({0, 4}, "init_process_group", "missing rank 1"); }).code, 1);
}

TEST(Run, SurvivesWhatIsNoException) {
  const auto ended = run_captured([] { throw 7; });
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.text, "an exception of an unknown type\n");
}

TEST(Run, PutsTheTextThatItPrintsIntoTheLogsFileToo) {
  const testing::TempFolder folder;
  const auto file = folder / "run.log";
  const auto shown = testing::heard([&] {  // what a process logs to is its own
    log::set_identity({.rank = 0, .world_size = 4});
    log::to_file(file);
    run([] { throw std::runtime_error("no such file"); });
    run([] { throw GradientError({0, 4}, "reducer", "no gradient", "use it"); });
    run([] { throw PeerLostError({0, 4}, "barrier #1", "rank 3 died", "", 3); });
  });
  const auto printed = testing::lines_of(shown);
  ASSERT_EQ(printed.size(), 3U) << shown;
  EXPECT_EQ(
      testing::timeless(testing::contents(file)),
      (testing::Lines{"error rank 0: " + printed[0], "error rank 0: " + printed[1], "error rank 0: " + printed[2]}));
  EXPECT_EQ(printed[0], "no such file");
}

}  // namespace
}  // namespace ddp
