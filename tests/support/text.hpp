#pragma once
/// text.hpp: what a test expects of a text.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace ddp::testing {

inline ::testing::AssertionResult contains(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

inline void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
}

/// How often `part` stands in `text`.
inline int count(std::string_view text, std::string_view part) {
  int times = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++times;
  return times;
}

}  // namespace ddp::testing
