#pragma once
/// stop_wish.hpp: whether this process wants the job to stop, and why.

#include <cstdint>
#include <string>
#include <vector>

namespace ddp {

/// One byte, so that it travels in a control record: a signal's number, or one of these.
using StopReason = std::uint8_t;
inline constexpr StopReason kNoStop = 0;
inline constexpr StopReason kStopAgreedBefore = 254;  ///< among the ranks of an earlier group
inline constexpr StopReason kStopByProgram = 255;

/// For good; the first reason counts. Threads: any, also in a signal's handler.
void want_to_stop(StopReason reason) noexcept;
StopReason stop_wish() noexcept;

/// "SIGTERM", "request_stop()".
std::string name_of(StopReason reason);
/// "SIGTERM on all ranks", "SIGUSR1 on rank 2, request_stop() on ranks 0, 3". `reasons`: one a rank, of which one at
/// least is a wish.
std::string described(const std::vector<StopReason>& reasons);

}  // namespace ddp
