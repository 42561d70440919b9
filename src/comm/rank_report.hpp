#pragma once
/// rank_report.hpp: what a rank does while others wait for it, as it says itself. Knows no torch.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_state.hpp"
#include "comm/peer_watch.hpp"

namespace ddp::comm {

struct RankReport {
  std::string status;         ///< the recorder's line
  std::uint64_t entered = 0;  ///< numbered calls that it has made
  std::int64_t step = -1;     ///< in which it is; -1: unknown
  std::string phase;          ///< empty: in none
  std::chrono::milliseconds in_phase{0};
  bool data_used_up = false;  ///< its loop over data has ended
  /// What it has called under the number that was asked for, if that is known still.
  std::optional<MadeCall> call;
  std::chrono::milliseconds in_call{0};      ///< since it has made that one
  bool works_for_all = false;                ///< the others wait for what it does in that call
  std::string elsewhere;                     ///< "in barrier #2 of the group of ranks 0, 2"; empty: in no other call
  Hindrance hindrance = Hindrance::unknown;  ///< of its thread; it has looked only where it has not made the call
  std::string thread;                        ///< "sleeps (read)"
  std::vector<std::string> stack;            ///< of that thread, innermost first
};

std::string encode_report(const RankReport& report);
/// None when the text is not of this form.
std::optional<RankReport> decode_report(std::string_view text);

}  // namespace ddp::comm
