#pragma once
/// hang_report.hpp: what is said of a call that does not end.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/hang_verdict.hpp"
#include "comm/session.hpp"

namespace ddp::comm {

struct HangReport {
  HangVerdict verdict;
  std::string lines;  ///< of every rank

  /// "rank 1 is loading data ...; look at ...\n  rank 0: ..."
  std::string text() const;
};

/// Asks all ranks what they do while this one waits in `call`; takes two seconds at most. None where it is another
/// rank's turn (see Question::turn).
std::optional<HangReport> hang_report(Session& session, const Call& call, std::uint32_t turn = 0);

/// "timed out after 9.0 s: rank 1 is ...", once this rank has waited so long in `call`.
std::string timeout_text(Session& session, const Call& call, std::chrono::milliseconds limit);

/// This host's ranks that cannot answer, by one look each; all but this one where that holds for rank 0.
std::vector<bool> held_ranks(const Session& session);

/// Nobody but this rank has answered, so that the group's rank 0, over which all are asked, is the silent one.
bool asked_over_nobody(const Session& session, const std::vector<std::string>& answers);

/// The rank at that place in the group, which gives no answer.
HangRank seen_from_here(const Session& session, std::size_t place);

}  // namespace ddp::comm
