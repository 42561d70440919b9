// Who is named for a call that does not end, and why, from what the ranks say.
#include "comm/hang_verdict.hpp"

#include <gtest/gtest.h>

#include "support/text.hpp"

namespace ddp::comm {
namespace {

using namespace std::chrono_literals;
using ddp::testing::contains;
using ddp::testing::count;

/// It has made call 5, the one that is judged.
HangRank waiting(int rank, std::chrono::milliseconds since = 60s) {
  RankReport report;
  report.status = "now in all_reduce #5";
  report.entered = 5;
  report.step = 2;
  report.call = MadeCall{5, "plan all_reduce 64 floats", "all_reduce #5 (64 floats) in step 2"};
  report.in_call = since;
  return {.rank = rank, .report = report};
}

/// It has made four calls and does something else.
HangRank absent(int rank, Hindrance hindrance = Hindrance::sleeping, const std::string& thread = "sleeps (read)") {
  RankReport report;
  report.status = "now not in a collective";
  report.entered = 4;
  report.step = 2;
  report.hindrance = hindrance;
  report.thread = thread;
  return {.rank = rank, .report = report};
}

HangRank silent(int rank, std::optional<Hindrance> seen) {
  HangRank one{.rank = rank, .process = "process 4711 on node7"};
  if (seen) one.main_seen.emplace().hindrance = *seen;
  return one;
}

HangCase hang(std::vector<HangRank> ranks) { return {5, -1, true, 2, std::move(ranks)}; }

void expect(const HangVerdict& verdict, HangKind kind, const std::vector<int>& ranks, const std::string& text) {
  EXPECT_EQ(verdict.kind, kind) << verdict.text;
  EXPECT_EQ(verdict.ranks, ranks) << verdict.text;
  EXPECT_TRUE(contains(verdict.text, text));
  EXPECT_FALSE(verdict.remedy.empty());
}

TEST(HangVerdict, NamesARankThatSleepsInItsOwnCode) {
  expect(judge_hang(hang({waiting(0), absent(1), waiting(2)})), HangKind::own_code, {1},
         "rank 1 is in code of its own in step 2, its thread sleeps (read)");
}

TEST(HangVerdict, NamesThePhaseOfTheProgram) {
  auto late = absent(1);
  late.report->phase = "validation";
  late.report->in_phase = 12'300ms;
  expect(judge_hang(hang({waiting(0), late})), HangKind::own_code, {1},
         "rank 1 is in \"validation\" in step 2 since 12.3 s, its thread sleeps (read)");
}

TEST(HangVerdict, TellsARankThatIsAtWorkFromOneThatIsBlocked) {
  const std::vector<std::pair<Hindrance, std::string>> remedies{
      {Hindrance::running, "give the ranks equal work"},
      {Hindrance::starved, "its threads need cores"},
      {Hindrance::disk_wait, "look at its disk"},
      {Hindrance::major_faults, "its memory does not suffice"}};
  for (const auto& [hindrance, remedy] : remedies) {
    const auto verdict = judge_hang(hang({waiting(0), absent(1, hindrance)}));
    expect(verdict, HangKind::slow, {1}, "rank 1 is in code of its own");
    EXPECT_TRUE(contains(verdict.remedy, remedy));
  }
}

TEST(HangVerdict, KnowsTheDataLoader) {
  auto late = absent(1, Hindrance::disk_wait, "waits for a disk (read of /data/train.bin)");
  late.report->phase = "loading data";
  late.report->in_phase = 9s;
  expect(judge_hang(hang({waiting(0), late})), HangKind::loading_data, {1},
         "rank 1 is loading data in step 2 since 9.0 s, its thread waits for a disk (read of /data/train.bin)");
}

TEST(HangVerdict, KnowsTheEndOfTheData) {
  auto late = absent(1);
  late.report->data_used_up = true;
  expect(judge_hang(hang({waiting(0), late})), HangKind::left_loop, {1},
         "rank 1 has had its last batch and left its loop, its thread sleeps (read)");
  auto all_done = waiting(0);
  all_done.report->data_used_up = true;
  expect(judge_hang(hang({all_done, late})), HangKind::own_code, {1}, "is in code of its own");
  late.report->phase = "validation";  // which it goes through after the loop
  expect(judge_hang(hang({waiting(0), late})), HangKind::own_code, {1}, "is in \"validation\"");
}

TEST(HangVerdict, KnowsARankThatHasMadeNoCall) {
  auto late = absent(1);
  late.report->entered = 0;
  expect(judge_hang(hang({waiting(0), late})), HangKind::no_call_yet, {1}, "rank 1 has made no call in this group yet");
}

TEST(HangVerdict, KnowsARankThatWaitsInAnotherGroup) {
  auto late = absent(1);
  late.report->elsewhere = "in barrier #2 of the group of ranks 0, 1";
  expect(judge_hang(hang({waiting(0), late})), HangKind::other_group, {1},
         "rank 1 waits in barrier #2 of the group of ranks 0, 1");
  expect(judge_hang(hang({waiting(0), late, absent(2)})), HangKind::own_code, {1, 2}, "; rank 2 is in code of its own");
  late.report->phase = "validation";
  expect(judge_hang(hang({waiting(0), late})), HangKind::own_code, {1},
         "rank 1 is in \"validation\" in step 2 since 0.0 s, its thread sleeps (read), and waits in barrier #2 of the "
         "group");
}

TEST(HangVerdict, KnowsACallOfOneRankAloneByTheLaterStepsOfTheOthers) {
  auto one = hang({waiting(0), absent(1), absent(2)});
  one.is_planned = false;
  for (auto i : {1U, 2U}) one.ranks[i].report->step = 4;
  expect(judge_hang(one), HangKind::one_rank_call, {1, 2},
         "only one rank has made this call; ranks 1, 2: each is in code of its own in step 4");
  one.ranks[2].report->step = 2;
  expect(judge_hang(one), HangKind::own_code, {1, 2}, "");
  one.ranks[2].report->step = 4;
  one.is_planned = true;
  EXPECT_EQ(judge_hang(one).kind, HangKind::own_code) << "the wrapped model's calls are made by all ranks";
}

TEST(HangVerdict, SaysOfASilentRankWhatTheKernelSays) {
  expect(judge_hang(hang({waiting(0), silent(1, Hindrance::stopped)})), HangKind::stopped, {1},
         "rank 1 gives no answer: process 4711 on node7 is stopped");
  expect(judge_hang(hang({waiting(0), silent(1, Hindrance::traced)})), HangKind::stopped, {1}, "gives no answer");
  expect(judge_hang(hang({waiting(0), silent(1, {})})), HangKind::silent, {1},
         "rank 1 gives no answer (process 4711 on node7)");
}

TEST(HangVerdict, DoesNotAccuseThoseThatCouldNotBeAsked) {
  const HangRank unasked{.rank = 2, .is_unasked = true};
  expect(judge_hang(hang({silent(0, Hindrance::stopped), waiting(1), unasked})), HangKind::stopped, {0},
         "rank 0 gives");
  EXPECT_EQ(rank_lines({unasked}), "\n  rank 2: cannot be asked while rank 0 is silent");
}

TEST(HangVerdict, PutsTheSurestKindFirstAndNamesAll) {
  auto loading = absent(3);
  loading.report->phase = "loading data";
  const auto verdict = judge_hang(hang({absent(0), waiting(1), silent(2, Hindrance::stopped), loading}));
  expect(verdict, HangKind::stopped, {0, 2, 3},
         "rank 0 is in code of its own in step 2, its thread sleeps; rank 2 gives");
  EXPECT_TRUE(contains(verdict.text, "; rank 3 is loading data"));
}

TEST(HangVerdict, HasTheRemedyForTheRankWhoseDoingItIs) {
  const auto verdict = judge_hang(hang({waiting(0), absent(1), absent(2, Hindrance::starved)}));
  expect(verdict, HangKind::slow, {1, 2}, "rank 2 is in code of its own in step 2, its thread waits for a core");
  EXPECT_TRUE(contains(verdict.remedy, "its threads need cores"));
}

TEST(HangVerdict, SaysOnceWhatManyRanksDo) {
  std::vector<HangRank> ranks{waiting(0)};
  for (int rank = 1; rank < 64; ++rank)
    ranks.push_back(absent(rank, Hindrance::sleeping, "sleeps and wakes " + std::to_string(rank) + " times/s"));
  const auto verdict = judge_hang(hang(std::move(ranks)));
  EXPECT_EQ(verdict.ranks.size(), 63U);
  EXPECT_EQ(count(verdict.text, "is in code of its own"), 1) << verdict.text;
}

TEST(HangVerdict, EndsALongListInWords) {
  std::vector<HangRank> ranks{waiting(0)};
  for (int rank = 1; rank < 9; ++rank) {
    ranks.push_back(absent(rank));
    ranks.back().report->step = rank;
  }
  EXPECT_TRUE(contains(judge_hang(hang(std::move(ranks))).text, "; and so on, see below"));
}

TEST(HangVerdict, KnowsCallsThatDiffer) {
  auto other = waiting(2);
  other.report->call = MadeCall{5, "signatures", "barrier #5 in step 2"};
  expect(judge_hang(hang({waiting(0), waiting(1), other})), HangKind::order_differs, {},
         "ranks 0, 1: each in all_reduce #5 (64 floats) in step 2; rank 2 in barrier #5 in step 2");
}

TEST(HangVerdict, NamesTheRankThatCameLast) {
  expect(judge_hang(hang({waiting(0), waiting(1, 2s), waiting(2)})), HangKind::slow, {1},
         "rank 1 has come to it only 2.0 s ago");
}

TEST(HangVerdict, AccusesNobodyWhereAllTakePart) {
  expect(judge_hang(hang({waiting(0), waiting(1), waiting(2)})), HangKind::in_transfer, {},
         "all ranks have made the call, but it does not end");
}

TEST(HangVerdict, OfAMessageLooksAtItsOtherRankAlone) {
  auto message = hang({waiting(0), absent(1), absent(2)});
  message.call = 0;
  message.peer = 2;
  expect(judge_hang(message), HangKind::own_code, {2}, "rank 2 is in code of its own");
}

TEST(HangVerdict, HasALineForEachRankAndTheStacks) {
  auto late = absent(1);
  late.report->elsewhere = "in barrier #2 of the group of ranks 0, 1";
  late.report->stack = {"read in libc.so.6(+0x1)", "main in train(+0x2)"};
  EXPECT_EQ(
      rank_lines({waiting(0), late, silent(2, {})}),
      "\n  rank 0: now in all_reduce #5"
      "\n  rank 1: now not in a collective; waits in barrier #2 of the group of ranks 0, 1; its thread sleeps (read)"
      "\n      at read in libc.so.6(+0x1)\n      at main in train(+0x2)"
      "\n  rank 2: no answer (process 4711 on node7)");
}

TEST(RankReport, ArrivesAsItWasSent) {
  auto report = *absent(1).report;
  report.phase = "loading data";
  report.in_phase = 1234ms;
  report.data_used_up = true;
  report.call = MadeCall{1ULL << 40U, "kind", "text"};
  report.in_call = 77ms;
  report.works_for_all = true;
  report.elsewhere = "elsewhere";
  report.stack = {"one", "two"};
  const auto read = decode_report(encode_report(report));
  ASSERT_TRUE(read);
  EXPECT_EQ(std::tuple(read->status, read->entered, read->step, read->phase, read->in_phase, read->data_used_up),
            std::tuple(report.status, report.entered, report.step, report.phase, report.in_phase, true));
  EXPECT_EQ(std::tuple(read->call->number, read->call->kind, read->call->text, read->in_call, read->works_for_all),
            std::tuple(1ULL << 40U, "kind", "text", 77ms, true));
  EXPECT_EQ(std::tuple(read->elsewhere, read->hindrance, read->thread, read->stack),
            std::tuple("elsewhere", Hindrance::sleeping, "sleeps (read)", report.stack));
}

TEST(RankReport, OfAnyLengthFitsIntoItsFrame) {
  auto report = *waiting(1).report;
  const std::string endless(100'000, 'x');
  report.status = report.phase = report.elsewhere = report.thread = report.call->kind = report.call->text = endless;
  report.stack.assign(1000, endless);
  const auto bytes = encode_report(report);
  EXPECT_LE(bytes.size(), 16U * 1024U);
  EXPECT_TRUE(decode_report(bytes));
}

TEST(RankReport, ThatIsCutOrWrongIsNone) {
  const auto bytes = encode_report(*absent(1).report);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_report(bytes.substr(0, length))) << length;
  EXPECT_FALSE(decode_report(bytes + 'x'));
}

}  // namespace
}  // namespace ddp::comm
