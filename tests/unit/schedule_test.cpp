#include "ddp/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <stdexcept>

#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

using namespace ddp::schedule;
using testing::contains;
using testing::error_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kLate = 1'000'000'000;

TEST(Schedule, IsOneForEverWhereItIsConstant) {
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{7}, kLate}) EXPECT_EQ(constant()(step), 1);
  EXPECT_EQ(constant().length(), std::nullopt);
}

TEST(Schedule, FallsAlongHalfACosineAndStaysAtItsEnd) {
  const auto half = cosine(100, 0.2);
  EXPECT_EQ(half.length(), 100);
  EXPECT_EQ(half(0), 1);
  EXPECT_NEAR(half(50), 0.6, 1e-15);
  EXPECT_NEAR(half(25), 0.2 + 0.8 * (1 + std::numbers::sqrt2 / 2) / 2, 1e-15);
  EXPECT_GT(half(99), 0.2);
  EXPECT_EQ(half(100), 0.2);
  EXPECT_EQ(half(kLate), 0.2);
  EXPECT_EQ(cosine(3)(3), 0);
}

TEST(Schedule, FallsInEqualPartsAndStaysAtItsEnd) {
  const auto line = linear_decay(4, 0.5);
  EXPECT_EQ(line.length(), 4);
  EXPECT_EQ(line(0), 1);
  EXPECT_EQ(line(1), 0.875);
  EXPECT_EQ(line(3), 0.625);
  EXPECT_EQ(line(4), 0.5);
  EXPECT_EQ(line(kLate), 0.5);
}

TEST(Schedule, FallsByGammaAfterEachSoManySteps) {
  const auto stairs = step_decay(10, 0.5);
  EXPECT_EQ(stairs.length(), std::nullopt);
  EXPECT_EQ(stairs(9), 1);
  EXPECT_EQ(stairs(10), 0.5);
  EXPECT_EQ(stairs(29), 0.25);
  EXPECT_EQ(stairs(30), 0.125);
}

TEST(Schedule, FallsByGammaAtEachMilestone) {
  const auto stairs = multi_step({3, 5}, 0.25);
  EXPECT_EQ(stairs.length(), std::nullopt);
  EXPECT_EQ(stairs(2), 1);
  EXPECT_EQ(stairs(3), 0.25);
  EXPECT_EQ(stairs(4), 0.25);
  EXPECT_EQ(stairs(5), 0.0625);
  EXPECT_EQ(stairs(kLate), 0.0625);
  EXPECT_EQ(multi_step({})(kLate), 1);
}

TEST(Schedule, WarmsUpFromAboveZeroToTheFirstFactorOfWhatFollows) {
  const auto ramp = warm_up(4, step_decay(2, 0.5));
  EXPECT_DOUBLE_EQ(ramp(0), 0.2);
  EXPECT_DOUBLE_EQ(ramp(3), 0.8);
  EXPECT_EQ(ramp(4), 1);
  EXPECT_EQ(ramp(5), 1);
  EXPECT_EQ(ramp(6), 0.5) << "what follows counts from its own beginning";
  EXPECT_EQ(ramp.length(), std::nullopt);
}

TEST(Schedule, WarmsUpFromTheFactorThatIsAskedFor) {
  const auto ramp = warm_up(10, cosine(20), 0.5);
  EXPECT_EQ(ramp(0), 0.5);
  EXPECT_DOUBLE_EQ(ramp(5), 0.75);
  EXPECT_EQ(ramp(10), 1);
  EXPECT_EQ(ramp(15), cosine(20)(5));
  EXPECT_EQ(ramp.length(), 30);
  EXPECT_EQ(ramp(30), 0);
}

TEST(Schedule, IsComposedToAnyDepth) {
  const auto trapezoid = warm_up(10, warm_up(80, linear_decay(10), 1.0), 0.0);
  EXPECT_EQ(trapezoid.length(), 100);
  EXPECT_EQ(trapezoid(0), 0);
  EXPECT_EQ(trapezoid(5), 0.5);
  EXPECT_EQ(trapezoid(10), 1);
  EXPECT_EQ(trapezoid(89), 1);
  EXPECT_DOUBLE_EQ(trapezoid(95), 0.5);
  EXPECT_EQ(trapezoid(100), 0);
}

TEST(Schedule, MultipliesTheWarmUpWithWhatTheNextOneBeginsWith) {
  const Schedule half([](std::int64_t) { return 0.5; });
  EXPECT_DOUBLE_EQ(warm_up(4, half, 0.0)(2), 0.25);
  EXPECT_EQ(warm_up(4, half, 0.0)(4), 0.5);
}

TEST(Schedule, DoesNotDependOnTheOrderInWhichItIsAsked) {
  const auto schedule = warm_up(50, cosine(300, 0.1));
  const double late = schedule(200);
  for (std::int64_t step = 400; step >= 0; --step) schedule(step);
  EXPECT_EQ(schedule(200), late);
}

TEST(Schedule, RefusesLengthsBelowOneAndWrongFactors) {
  for (const std::int64_t steps : {0, -3}) {
    EXPECT_THROW(cosine(steps), std::invalid_argument);
    EXPECT_THROW(linear_decay(steps), std::invalid_argument);
    EXPECT_THROW(step_decay(steps), std::invalid_argument);
    EXPECT_THROW(multi_step({steps}), std::invalid_argument);
    EXPECT_THROW(warm_up(steps), std::invalid_argument);
    EXPECT_THROW(Schedule([](std::int64_t) { return 1.0; }, steps), std::invalid_argument);
  }
  for (const double factor : {-0.1, kNaN}) {
    EXPECT_THROW(cosine(1, factor), std::invalid_argument);
    EXPECT_THROW(linear_decay(1, factor), std::invalid_argument);
    EXPECT_THROW(step_decay(1, factor), std::invalid_argument);
    EXPECT_THROW(multi_step({1}, factor), std::invalid_argument);
    EXPECT_THROW(warm_up(1, constant(), factor), std::invalid_argument);
  }
  EXPECT_THROW(multi_step({5, 3}), std::invalid_argument);
  EXPECT_THROW(multi_step({5, 5}), std::invalid_argument);
  EXPECT_THROW(Schedule(nullptr), std::invalid_argument);
  EXPECT_THROW(constant()(-1), std::invalid_argument);
}

TEST(Schedule, NamesTheStepWhoseFactorIsWrong) {
  const Schedule wrong([](std::int64_t step) { return step == 17 ? kNaN : 1.0 - 0.1 * static_cast<double>(step); });
  EXPECT_EQ(wrong(5), 0.5);
  EXPECT_TRUE(contains(error_of<std::domain_error>([&] { wrong(17); }), "the factor of step 17 is nan"));
  EXPECT_TRUE(contains(error_of<std::domain_error>([&] { wrong(11); }), "the factor of step 11 is -0.1"));
}

}  // namespace
}  // namespace ddp
