#include "base/phase.hpp"

#include <gtest/gtest.h>

namespace ddp {
namespace {

TEST(Phase, LastsAsLongAsItsObjectAndThenTheOuterOneGoesOn) {
  EXPECT_STREQ(current_phase(), "");
  const auto before = std::chrono::steady_clock::now();
  {
    const Phase epoch("epoch");
    const auto began = phase_began();
    EXPECT_GE(began, before);
    {
      const Phase validation("validation");
      EXPECT_STREQ(current_phase(), "validation");
      EXPECT_GE(phase_began(), began);
    }
    EXPECT_STREQ(current_phase(), "epoch");
    EXPECT_EQ(phase_began(), began);
  }
  EXPECT_STREQ(current_phase(), "");
}

TEST(Phase, WithoutANameIsNone) {
  const Phase outer("epoch");
  const Phase phase(nullptr);
  EXPECT_STREQ(current_phase(), "");
}

TEST(Step, IsUnknownUntilItIsMarkedAndAgainAfterANegativeOne) {
  EXPECT_EQ(marked_step(), -1);
  step(7);
  EXPECT_EQ(marked_step(), 7);
  step(-1);
  EXPECT_EQ(marked_step(), -1);
}

}  // namespace
}  // namespace ddp
