#include "ddp/progress_bar.hpp"

#include <gtest/gtest.h>

#include "support/ranks.hpp"
#include "support/terminal.hpp"

namespace ddp {
namespace {

TEST(ProgressBarRanks, IsDrawnByRankZeroAlone) {
  ::ddp::testing::run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    ::ddp::testing::Terminal terminal;
    {
      ProgressBar(5, *group, {.descriptor = terminal.descriptor()}).advance();
    }
    EXPECT_EQ(terminal.text().empty(), group->rank() != 0);
  });
}

}  // namespace
}  // namespace ddp
