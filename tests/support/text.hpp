#pragma once
/// text.hpp: what a test expects of a text.

#include <gtest/gtest.h>

#include <string_view>

namespace ddp::testing {

inline ::testing::AssertionResult contains(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

}  // namespace ddp::testing
