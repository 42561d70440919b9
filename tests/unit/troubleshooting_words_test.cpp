// What docs/troubleshooting.md quotes of the reports is what they say. TROUBLESHOOTING is the document's path.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "comm/hang_verdict.hpp"
#include "comm/watch_mismatch.hpp"
#include "support/text.hpp"

namespace ddp::comm {
namespace {

using namespace std::chrono_literals;

/// The phrases in backticks of the first column of the table that begins with this word.
std::vector<std::string> quoted(const std::string& first_word) {
  std::ifstream document(TROUBLESHOOTING);
  std::vector<std::string> phrases;
  bool is_inside = false;
  for (std::string line; std::getline(document, line);) {
    is_inside = line.starts_with("| " + first_word + " |") || (is_inside && line.starts_with('|'));
    const auto begin = line.find('`'), end = line.find('`', begin + 1);
    if (is_inside && line.starts_with("| `")) phrases.push_back(line.substr(begin + 1, end - begin - 1));
  }
  return phrases;
}

using Texts = std::vector<std::string>;

bool any_contains(const Texts& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(), [&](const auto& text) { return text.find(part) != text.npos; });
}

void expect_to_be_said(const Texts& phrases, const Texts& said) {
  EXPECT_FALSE(phrases.empty());
  for (const auto& phrase : phrases) EXPECT_TRUE(any_contains(said, phrase)) << "nobody says: " << phrase;
}

/// Each text has a phrase that describes it.
void expect_to_be_explained(const Texts& said, const Texts& phrases) {
  for (const auto& text : said) {
    const auto explains = [&](const auto& phrase) { return text.find(phrase) != text.npos; };
    EXPECT_TRUE(std::any_of(phrases.begin(), phrases.end(), explains)) << "not in the table: " << text;
  }
}

ThreadState state(Hindrance hindrance, const std::string& waits_in = {}) {
  ThreadState made;
  made.hindrance = hindrance;
  made.on_core = hindrance == Hindrance::running ? 0.97 : 0;
  made.without_core = 0.94;
  made.major_faults_per_second = 310;
  made.disk_seen = true;
  made.tracer = 99;
  made.waits_in = waits_in;
  return made;
}

HangRank waiting(int rank, std::int64_t step = 3) {
  RankReport report;
  report.entered = 8;
  report.step = step;
  report.call = MadeCall{8, "plan", "all_reduce #8 (64 floats) in step 3"};
  report.in_call = 61s;
  return {.rank = rank, .report = report};
}

HangRank absent(const ThreadState& thread, std::int64_t step = 3, int rank = 1) {
  RankReport report;
  report.entered = 7;
  report.step = step;
  report.in_phase = 61s;
  report.hindrance = thread.hindrance;
  report.thread = described(thread);
  return {.rank = rank, .report = report};
}

HangRank in_phase(const ThreadState& thread, const std::string& phase) {
  auto rank = absent(thread);
  rank.report.value().phase = phase;
  return rank;
}

HangRank with(HangRank rank, const std::function<void(RankReport&)>& change) {
  change(rank.report.value());
  return rank;
}

HangRank unheard(std::optional<ThreadState> seen, const std::string& host = "node7") {
  return {.rank = 1, .main_seen = std::move(seen), .process = "process 4712 on " + host};
}

/// Rank 0 waits in call 8, in step 3, which the wrapped model has made.
HangCase beside_rank_0(HangRank rank) { return {8, -1, true, 3, {waiting(0), std::move(rank)}}; }

/// One of each kind at least.
std::vector<HangCase> hangs_of(HangKind kind) {
  const auto sleeps = state(Hindrance::sleeping, "futex"), runs = state(Hindrance::running);
  switch (kind) {
    case HangKind::stopped:
      return {beside_rank_0(unheard(state(Hindrance::stopped))), beside_rank_0(unheard(state(Hindrance::frozen))),
              beside_rank_0(unheard(state(Hindrance::traced)))};
    case HangKind::silent:
      return {beside_rank_0(unheard(state(Hindrance::disk_wait))), beside_rank_0(unheard({}, "node8"))};
    case HangKind::no_call_yet:
      return {beside_rank_0(with(absent(sleeps, -1), [](auto& report) { report.entered = 0; }))};
    case HangKind::other_group:
      return {beside_rank_0(with(absent(sleeps), [](auto& report) {
        report.elsewhere = "in barrier #2 in step 3 of the group of ranks 0, 1";
      }))};
    case HangKind::loading_data:
      return {beside_rank_0(in_phase(state(Hindrance::sleeping, "read of /data/train.bin"), "loading data"))};
    case HangKind::left_loop:
      return {beside_rank_0(with(absent(sleeps), [](auto& report) { report.data_used_up = true; }))};
    case HangKind::one_rank_call:
      return {{8, -1, false, 3, {waiting(0), absent(sleeps, 4), absent(sleeps, 4, 2)}}};
    case HangKind::slow:
      return {beside_rank_0(in_phase(runs, "forward")),
              beside_rank_0(with(waiting(1), [](auto& report) { report.in_call = 2s; }))};
    case HangKind::own_code:
      return {beside_rank_0(absent(sleeps))};
    case HangKind::order_differs: {
      const auto in_barrier =
          with(waiting(0), [](auto& report) { report.call = MadeCall{8, "signatures", "barrier #8 in step 3"}; });
      return {{8, -1, false, 3, {in_barrier, waiting(1)}}};
    }
    case HangKind::in_transfer:
      return {beside_rank_0(waiting(1))};
  }
  return {};
}

Texts verdicts() {
  Texts texts;
  for (int kind = 0; kind <= static_cast<int>(HangKind::in_transfer); ++kind)
    for (const auto& hang : hangs_of(static_cast<HangKind>(kind))) {
      const auto verdict = judge_hang(hang);
      EXPECT_EQ(static_cast<int>(verdict.kind), kind) << verdict.text;
      texts.push_back(verdict.text);
    }
  return texts;
}

Texts mismatches() {
  const MadeCall in_model{8, "plan", std::string("bucket") + watch::kByModel};
  const MadeCall outside{8, "signatures", std::string("mean") + watch::kByProgram};
  Texts texts;
  for (const auto& calls : {std::vector{in_model, outside}, std::vector{outside, in_model}}) {
    watch::Waits waits({0, 1});
    for (int rank : {0, 1}) waits.set(rank, {calls[static_cast<std::size_t>(rank)]});
    texts.push_back(waits.mismatch().value_or("no mismatch"));
  }
  return texts;
}

Texts thread_texts() {
  Texts texts{described(state(Hindrance::sleeping, "futex"))};
  for (int hindrance = 0; hindrance <= static_cast<int>(Hindrance::ended); ++hindrance) {
    const auto made = state(static_cast<Hindrance>(hindrance), "read of /data/train.bin");
    if (!is_held(made.hindrance)) texts.push_back(described(made));  // then it gives no report
  }
  auto wakes = state(Hindrance::sleeping, "futex");
  wakes.waits_per_second = 98;
  texts.push_back(described(wakes));
  return texts;
}

TEST(Troubleshooting, QuotesTheReportsOwnWords) {
  auto said = verdicts();
  for (auto& text : mismatches()) said.push_back(std::move(text));
  said.push_back(rank_lines({{.rank = 1, .is_unasked = true}}));
  expect_to_be_said(quoted("the report says"), said);
}

TEST(Troubleshooting, ExplainsEveryKindOfVerdict) {
  const auto phrases = quoted("the report says");
  expect_to_be_explained(verdicts(), phrases);
  expect_to_be_explained(mismatches(), phrases);
}

TEST(Troubleshooting, ExplainsAllThatKeepsAThread) {
  const auto phrases = quoted("its thread"), said = thread_texts();
  expect_to_be_said(phrases, said);
  expect_to_be_explained(said, phrases);
}

}  // namespace
}  // namespace ddp::comm
