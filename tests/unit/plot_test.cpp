#include "ddp/plot.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "unit/log_heard.hpp"

namespace ddp {
namespace {

using ::ddp::testing::contents;
using ::ddp::testing::count;
using ::ddp::testing::TempFolder;

const std::string kPng = "\x89PNG\r\n\x1a\n";

TEST(Plot, WritesAPngAndReplacesItLater) {
  const TempFolder folder;
  Plot plot("run", 0);
  for (int i = 0; i < 10; ++i) plot.add("loss", "training", i, 1.0 / (i + 1));
  EXPECT_TRUE(plot.save(folder / "new/run.png"));
  const auto first = contents(folder / "new/run.png");
  EXPECT_TRUE(first.starts_with(kPng));
  EXPECT_TRUE(plot.save(folder / "new/run.png"));
  EXPECT_TRUE(contents(folder / "new/run.png") == first);
  plot.add("accuracy", "test", 9, 0.5);
  EXPECT_TRUE(plot.save(folder / "new/run.png"));
  EXPECT_FALSE(contents(folder / "new/run.png") == first);
  EXPECT_EQ(folder.files().size(), 1U);
}

TEST(Plot, DoesNothingOnOtherRanks) {
  const TempFolder folder;
  Plot plot("run", 1);
  plot.add("loss", "training", 0, 1);
  EXPECT_TRUE(plot.save(folder / "run.png"));
  EXPECT_TRUE(folder.files().empty());
}

TEST(Plot, ThatCannotBeWrittenIsAWarningAndNothingElse) {
  const auto text = ::ddp::testing::heard([] {
    Plot plot("run", 0);
    for (int i = 0; i < 3; ++i) {
      if (plot.save("/proc/none/run.png")) ::_exit(1);
    }
  });
  EXPECT_EQ(count(text, "\"/proc/none/run.png\" could not be written: No such file or directory"), 1) << text;
}

TEST(Plot, RefusesPicturesThatAreTooSmallOnEveryRank) {
  EXPECT_THROW(Plot("run", 1, {.width = 199}), std::invalid_argument);
  EXPECT_THROW(Plot("run", 1, {.panel_height = 99}), std::invalid_argument);
}

}  // namespace
}  // namespace ddp
