#include "base/last_words.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "ddp/log.hpp"
#include "support/temp_folder.hpp"
#include "unit/log_heard.hpp"

namespace ddp::testing {
namespace {

TEST(LastWords, AreShownAsTheyAreAndStandInTheFileWhateverTheLevel) {
  const TempFolder folder;
  EXPECT_EQ(heard([&] {
              setenv("DDP_LOG_LEVEL", "off", 1);
              log::set_identity({.rank = 3, .world_size = 4});
              log::to_file(folder / "{rank}.log");
              log::put_last_words("no data\ntwice");
            }),
            "no data\ntwice\n");
  EXPECT_EQ(timeless(contents(folder / "3.log")), (Lines{"error rank 3: no data", "error rank 3: twice"}));
}

TEST(LastWords, AreNotInRankZerosFileWhereAnotherRankSpeaks) {
  const TempFolder folder;
  EXPECT_EQ(heard([&] {
              log::set_identity({.rank = 3, .world_size = 4});
              log::to_file(folder / "run.log");
              log::put_last_words("no data");
            }),
            "no data\n");
  EXPECT_EQ(folder.files(), std::vector<std::string>{});
}

}  // namespace
}  // namespace ddp::testing
