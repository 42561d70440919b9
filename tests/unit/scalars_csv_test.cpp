#include "report/scalars_csv.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "unit/log_heard.hpp"

namespace ddp::report {
namespace {

using ::ddp::testing::contents;
using ::ddp::testing::count;
using ::ddp::testing::heard;
using ::ddp::testing::TempFolder;

TEST(ScalarsCsv, HasALineForEachScalarWithAllItsDigits) {
  const TempFolder folder;
  {
    ScalarsCsv csv(folder / "s.csv");
    csv.append({.wall_time = 1700000000.25, .step = 7}, "loss", 0.1);
    csv.append({.wall_time = 1, .step = -1}, "a,\"b\"", NAN);
  }
  EXPECT_EQ(contents(folder / "s.csv"),
            "wall_time,step,tag,value\n"
            "1700000000.250000,7,loss,0.1\n"
            "1.000000,-1,\"a,\"\"b\"\"\",nan\n");
}

TEST(ScalarsCsv, GoesOnInAnExistingFile) {
  const TempFolder folder;
  for (int step = 0; step < 2; ++step) ScalarsCsv(folder / "s.csv").append({.wall_time = 0, .step = step}, "x", 1e300);
  EXPECT_EQ(contents(folder / "s.csv"), "wall_time,step,tag,value\n0.000000,0,x,1e+300\n0.000000,1,x,1e+300\n");
}

TEST(ScalarsCsv, OfSeveralProcessesHasOneHeaderAndWholeLines) {
  const TempFolder folder;
  constexpr int processes = 4, lines = 50;
  heard(
      [&] {
        ScalarsCsv csv(folder / "s.csv");
        for (int step = 0; step < lines; ++step) {
          csv.append({.wall_time = 0, .step = step}, "x", 1);
          csv.flush();
        }
      },
      processes);
  const auto text = contents(folder / "s.csv");
  EXPECT_EQ(text.find("wall_time"), 0U);
  EXPECT_EQ(count(text, "wall_time,step,tag,value\n"), 1);
  for (int step = 0; step < lines; ++step) {
    EXPECT_EQ(count(text, "\n0.000000," + std::to_string(step) + ",x,1"), processes) << step;
  }
}

TEST(ScalarsCsv, AFullDiskIsSaidOnce) {
  const auto text = heard([] {
    ScalarsCsv csv("/dev/full");
    for (int i = 0; i < 3; ++i) {
      csv.append({}, "x", i);
      csv.flush();
    }
  });
  EXPECT_EQ(count(text, "\"/dev/full\" could not be written: No space left on device"), 1) << text;
}

}  // namespace
}  // namespace ddp::report
