#pragma once
/// hang_verdict.hpp: who holds a call up and why, as far as the ranks' reports and the kernel tell. Knows no torch.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_state.hpp"
#include "comm/rank_report.hpp"

namespace ddp::comm {

/// Of several the first says most.
enum class HangKind : std::uint8_t {
  stopped,        ///< a rank's process is stopped, frozen or held by a debugger
  silent,         ///< a rank's process gives no answer
  no_call_yet,    ///< a rank has made no call in this group
  loading_data,   ///< a rank waits for its next batch
  left_loop,      ///< a rank has had fewer batches
  one_rank_call,  ///< the others have gone on without it, as past an `if (rank == 0)`
  slow,           ///< a rank still computes, or came late
  own_code,       ///< a rank sleeps in code of the program
  other_group,    ///< a rank waits in a call of another group, or in a message
  order_differs,  ///< the ranks have made different calls
  in_transfer,    ///< all ranks have made the call, and it does not end
};

/// A rank, as others see it.
struct HangRank {
  int rank = -1;
  std::optional<RankReport> report = {};      ///< none: it has not answered
  bool is_unasked = false;                    ///< the question has not reached it, for rank 0 is silent
  std::optional<ThreadState> main_seen = {};  ///< of one without an answer: its main thread, where the asker can see it
  std::string process = {};                   ///< "process 4711 on node7"
};

struct HangCase {
  std::uint64_t call = 0;  ///< its number; 0: a message
  int peer = -1;           ///< a message's other rank
  bool is_planned = false;
  std::int64_t step = -1;  ///< in which the asker has made the call
  std::vector<HangRank> ranks;
};

struct HangVerdict {
  HangKind kind = HangKind::in_transfer;
  std::vector<int> ranks;  ///< that hold it up; empty: all take part in it
  std::string text;        ///< "rank 1 is loading data since 12.0 s, its thread sleeps (read)"
  std::string remedy;
};

HangVerdict judge_hang(const HangCase& hang);

/// A line for each rank, with the stacks of those that have one: "\n  rank 1: ...\n      at ...".
std::string rank_lines(const std::vector<HangRank>& ranks);

}  // namespace ddp::comm
