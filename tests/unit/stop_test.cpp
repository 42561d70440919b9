// A process without other ranks; see tests/ranks/stop_test.cpp for several.

#include "ddp/stop.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "ddp/process_group.hpp"
#include "support/text.hpp"
#include "unit/log_heard.hpp"

namespace ddp {
namespace {

using testing::heard_from;

constexpr std::string_view kAnswer = "answer: ";

void note(bool answer) { ::dprintf(STDERR_FILENO, "%s%s\n", kAnswer.data(), answer ? "yes" : "no"); }

// What stop_requested() answers in turn, in a child: a wish lasts as long as its process.
template <class F>
std::string answers(F body) {
  std::istringstream heard(heard_from(1, [&](int) { body(); }));
  std::string answers;
  for (std::string line; std::getline(heard, line);)
    if (line.starts_with(kAnswer)) answers += line.substr(kAnswer.size()) + ' ';
  return answers;
}

TEST(Stop, WithoutAGroupIsTheOwnWish) {
  EXPECT_EQ(answers([] {
              note(stop_requested());
              request_stop();
              note(stop_requested());
            }),
            "no yes ");
}

TEST(Stop, InAWorldOfOneIsTheOwnWish) {
  EXPECT_EQ(answers([] {
              const auto group = init_process_group({.environment = Environment{}});
              stop_on_signals({SIGUSR1});
              note(stop_requested());
              note(stop_requested(*group));
              std::raise(SIGUSR1);
              note(stop_requested());
              note(stop_requested(*group));
            }),
            "no no yes yes ");
}

TEST(Stop, IsToldOnceWithItsReason) {
  const auto said = heard_from(1, [](int) {
    stop_on_signals({SIGTERM});
    std::raise(SIGTERM);
    for (int i = 0; i < 3; ++i) static_cast<void>(stop_requested());
  });
  EXPECT_EQ(testing::count(said, "the program is to stop after this step: SIGTERM"), 1) << said;
}

TEST(Stop, OnSignalsOfFaultsIsRefused) { EXPECT_THROW(stop_on_signals({SIGTERM, SIGSEGV}), std::invalid_argument); }

}  // namespace
}  // namespace ddp
