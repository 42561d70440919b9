#include "comm/hang_verdict.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace ddp::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kLoading = "loading data";  // the phase that make_data_loader() marks

std::string seconds(milliseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
  return text.data();
}

/// It goes on, if slowly.
bool is_at_work(Hindrance hindrance) {
  return hindrance == Hindrance::running || hindrance == Hindrance::starved || hindrance == Hindrance::major_faults ||
         hindrance == Hindrance::disk_wait;
}

/// What one rank does instead.
struct Doing {
  HangKind kind;
  std::string text;  // to follow "rank 1 "
};

Doing doing_of_silent(const HangRank& rank) {
  const bool is_held_here = rank.main_seen && is_held(rank.main_seen->hindrance);
  std::string text = "gives no answer";
  if (rank.main_seen)
    text += ": " + rank.process + ' ' + described(*rank.main_seen);
  else if (!rank.process.empty())
    text += " (" + rank.process + ')';
  return {is_held_here ? HangKind::stopped : HangKind::silent, std::move(text)};
}

std::string in_step(const RankReport& report) {
  return report.step < 0 ? "" : " in step " + std::to_string(report.step);
}

std::string briefly(Hindrance hindrance) {
  switch (hindrance) {
    case Hindrance::running:
      return "computes";
    case Hindrance::starved:
      return "waits for a core";
    case Hindrance::disk_wait:
      return "waits for a disk";
    case Hindrance::major_faults:
      return "reads its memory back from a disk";
    default:
      return "sleeps";
  }
}

/// Of the ranks that take part: else all have left their loops, and it is no matter of batches.
bool somebody_has_data(const HangCase& hang) {
  return std::any_of(hang.ranks.begin(), hang.ranks.end(), [&](const HangRank& rank) {
    return rank.report && rank.report->entered >= hang.call && !rank.report->data_used_up;
  });
}

/// Brief where several ranks are to share a phrase.
Doing doing_of(const HangRank& rank, const HangCase& hang, bool is_brief) {
  if (!rank.report) return doing_of_silent(rank);
  const auto& report = *rank.report;
  const auto thread =
      report.thread.empty() ? "" : ", its thread " + (is_brief ? briefly(report.hindrance) : report.thread);
  if (!report.elsewhere.empty() && report.phase.empty())
    return {hang.call == 0 ? HangKind::order_differs : HangKind::other_group, "waits " + report.elsewhere};
  if (report.phase == kLoading)
    return {HangKind::loading_data,
            "is loading data" + in_step(report) + " since " + seconds(report.in_phase) + thread};
  if (report.data_used_up && report.phase.empty() && somebody_has_data(hang))
    return {HangKind::left_loop, "has had its last batch and left its loop" + thread};
  const auto also = report.elsewhere.empty() ? "" : ", and waits " + report.elsewhere;
  const auto where = report.phase.empty()
                         ? "is in code of its own" + in_step(report)
                         : "is in \"" + report.phase + '"' + in_step(report) + " since " + seconds(report.in_phase);
  if (hang.call > 0 && report.entered == 0)
    return {HangKind::no_call_yet, "has made no call in this group yet and " + where + thread};
  return {is_at_work(report.hindrance) ? HangKind::slow : HangKind::own_code, where + thread + also};
}

std::string remedy_for_slow(Hindrance hindrance) {
  switch (hindrance) {
    case Hindrance::starved:
      return "its threads need cores: fewer ranks or threads (OMP_NUM_THREADS) on its host, or a larger quota";
    case Hindrance::disk_wait:
      return "look at its disk or network file system";
    case Hindrance::major_faults:
      return "its memory does not suffice: fewer ranks on its host, or smaller batches";
    default:
      return "give the ranks equal work, or a longer timeout (DDP_TIMEOUT) if their times may differ so much";
  }
}

/// `hindrance`: of the rank whose doing it is.
std::string remedy_for(HangKind kind, Hindrance hindrance = Hindrance::unknown) {
  switch (kind) {
    case HangKind::stopped:
      return "let its process go on (kill -CONT, the debugger, the container), or end the job";
    case HangKind::silent:
      return "look at its host, and at the network between the hosts";
    case HangKind::no_call_yet:
      return "all ranks have to make the call: see whether that one is still preparing, or takes another way";
    case HangKind::other_group:
      return "see whom that one waits for, or make all calls in one order on all ranks, those of several groups and "
             "messages too";
    case HangKind::loading_data:
      return "look at what its data loader waits for: a disk, a download, a lock, too few workers";
    case HangKind::left_loop:
      return "give all ranks as many batches (a DistributedSampler that pads does), or train under join()";
    case HangKind::one_rank_call:
      return "make the call on all ranks: take it out of the `if (rank == 0)`";
    case HangKind::slow:
      return remedy_for_slow(hindrance);
    case HangKind::own_code:
      return "see its stack below; what one rank does for all belongs in rank0_section()";
    case HangKind::order_differs:
      return "make the same calls on all ranks, in one order";
    case HangKind::in_transfer:
      break;
  }
  return "look at the network between the hosts, and at ranks that are short of a core";
}

std::string named(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  return text;
}

/// Ranks with one text become one phrase; the singular serves several, too.
struct Phrases {
  std::vector<std::pair<std::string, std::vector<int>>> all;

  void add(int rank, const std::string& text) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == text; });
    if (same == all.end())
      all.emplace_back(text, std::vector{rank});
    else
      same->second.push_back(rank);
  }
  std::string text() const {
    constexpr std::size_t most = 4;
    std::string joined;
    for (std::size_t i = 0; i < std::min(all.size(), most); ++i)
      joined +=
          (i == 0 ? "" : "; ") + named(all[i].second) + (all[i].second.size() == 1 ? " " : ": each ") + all[i].first;
    if (all.size() > most) joined += "; and so on, see below";
    return joined;
  }
};

bool is_absent(const HangRank& rank, const HangCase& hang) {
  if (!rank.report) return !rank.is_unasked;
  if (hang.call == 0) return rank.rank == hang.peer;
  return rank.report->entered < hang.call || rank.report->works_for_all;
}

/// The others have gone on to later steps, and one alone waits in a call of the program.
bool is_one_ranks_call(const HangCase& hang, const std::vector<const HangRank*>& absent) {
  if (hang.is_planned || hang.step < 0 || hang.call == 0 || absent.size() + 1 != hang.ranks.size()) return false;
  return std::all_of(absent.begin(), absent.end(),
                     [&](const HangRank* rank) { return rank->report && rank->report->step > hang.step; });
}

HangVerdict of_absent(const HangCase& hang, const std::vector<const HangRank*>& absent) {
  HangVerdict verdict{HangKind::in_transfer, {}, {}, {}};
  Phrases phrases;
  const HangRank* decisive = nullptr;
  for (const auto* rank : absent) {
    const auto doing = doing_of(*rank, hang, absent.size() > 1);
    if (decisive == nullptr || doing.kind < verdict.kind) {  // the kinds are in this order
      verdict.kind = doing.kind;
      decisive = rank;
    }
    verdict.ranks.push_back(rank->rank);
    phrases.add(rank->rank, doing.text);
  }
  verdict.text = phrases.text();
  if (is_one_ranks_call(hang, absent) && verdict.kind > HangKind::silent) {
    verdict.kind = HangKind::one_rank_call;
    verdict.text = "only one rank has made this call; " + verdict.text;
  }
  const auto& report = decisive->report;
  verdict.remedy = remedy_for(verdict.kind, report ? report->hindrance : Hindrance::unknown);
  if (report && report->works_for_all) verdict.remedy = "give rank0_section() a longer timeout, or less to do";
  return verdict;
}

HangVerdict of_present(const HangCase& hang) {
  Phrases calls;
  auto first = milliseconds::zero(), last = milliseconds::max();
  int latest = -1;
  bool differ = false;
  const std::string* kind = nullptr;
  for (const auto& rank : hang.ranks) {
    if (!rank.report || !rank.report->call) continue;  // unknown, or long ago
    const auto& call = *rank.report->call;
    calls.add(rank.rank, "in " + call.text);
    differ = differ || (kind != nullptr && *kind != call.kind);
    kind = &call.kind;
    first = std::max(first, rank.report->in_call);
    if (rank.report->in_call < last) latest = rank.rank;
    last = std::min(last, rank.report->in_call);
  }
  if (differ) return {HangKind::order_differs, {}, calls.text(), remedy_for(HangKind::order_differs)};
  if (latest >= 0 && last < first / 2)
    return {HangKind::slow,
            {latest},
            named({latest}) + " has come to it only " + seconds(last) + " ago",
            remedy_for(HangKind::slow)};
  return {HangKind::in_transfer,
          {},
          "all ranks have made the call, but it does not end",
          remedy_for(HangKind::in_transfer)};
}

}  // namespace

HangVerdict judge_hang(const HangCase& hang) {
  std::vector<const HangRank*> absent;
  for (const auto& rank : hang.ranks)
    if (is_absent(rank, hang)) absent.push_back(&rank);
  return absent.empty() ? of_present(hang) : of_absent(hang, absent);
}

std::string rank_lines(const std::vector<HangRank>& ranks) {
  std::string text;
  for (const auto& rank : ranks) {
    text += "\n  rank " + std::to_string(rank.rank) + ": ";
    if (rank.is_unasked) {
      text += "cannot be asked while rank 0 is silent";
      continue;
    }
    if (!rank.report) {
      const auto doing = doing_of_silent(rank).text;
      text += doing.substr(doing.find("no answer"));
      continue;
    }
    const auto& report = *rank.report;
    text += report.status;
    if (!report.elsewhere.empty()) text += "; waits " + report.elsewhere;
    if (!report.thread.empty()) text += "; its thread " + report.thread;
    for (const auto& frame : report.stack) text += "\n      at " + frame;
  }
  return text;
}

}  // namespace ddp::comm
