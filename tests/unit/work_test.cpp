#include "ddp/work.hpp"

#include <gtest/gtest.h>

namespace ddp {
namespace {

TEST(Work, AsMadeIsCompleteAlready) {
  const Work work;
  EXPECT_TRUE(work.is_completed());
  work.wait();
  work.wait(std::chrono::milliseconds(0));
}

}  // namespace
}  // namespace ddp
