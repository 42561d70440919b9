#include "ddp/error.hpp"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace ddp {
namespace {

TEST(Error, ReadsRankPartWhatAndRemedy) {
  const GradientError error({2, 4}, "reducer", "no gradient for fc2.weight", "set find_unused_parameters");
  EXPECT_STREQ(error.what(), "rank 2 of 4: reducer: no gradient for fc2.weight; set find_unused_parameters");
  EXPECT_EQ(error.origin().rank, 2);
  EXPECT_EQ(error.origin().world_size, 4);
}

TEST(Error, StartsWithThePartWhereNoRankIsKnown) {
  EXPECT_STREQ(ConfigError({}, "environment", "RANK=x is no number", "set it").what(),
               "environment: RANK=x is no number; set it");
}

TEST(Error, EndsWithoutASemicolonWhereThereIsNoRemedy) {
  EXPECT_STREQ(CommError({0, 1}, "group", "broken").what(), "rank 0 of 1: group: broken");
}

TEST(Error, KindsAreCaughtAsWhatTheCallerCanDoAboutThem) {
  const auto throw_lost = [] { throw PeerLostError({1, 2}, "group", "rank 0 is gone", "", 0); };
  EXPECT_THROW(throw_lost(), CommError);
  const auto throw_late = [] { throw TimeoutError({1, 2}, "group", "too late"); };
  EXPECT_THROW(throw_late(), CommError);
  EXPECT_TRUE((std::is_base_of_v<Error, ConfigError> && std::is_base_of_v<Error, ModelMismatchError> &&
               std::is_base_of_v<Error, GradientError> && std::is_base_of_v<Error, CommError> &&
               std::is_base_of_v<Error, CheckpointError>));
  EXPECT_FALSE((std::is_base_of_v<std::logic_error, Error>)) << "a logic_error is the programmer's misuse";
}

TEST(PeerLostError, NamesThePeer) { EXPECT_EQ(PeerLostError({1, 2}, "group", "gone", "", 3).peer(), 3); }

}  // namespace
}  // namespace ddp
