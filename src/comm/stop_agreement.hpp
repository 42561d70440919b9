#pragma once
/// stop_agreement.hpp: that the ranks stop is known on each from the same point of the program on.

#include <vector>

#include "base/stop_wish.hpp"
#include "ddp/process_group.hpp"

#include <string_view>

#include "ddp/environment.hpp"

namespace ddp::comm {

/// What this rank tells the others.
StopReason stop_wish_to_tell() noexcept;

/// What the ranks of `group` have told each other, in its order, at the same point of the program on each: true if one
/// wants to stop. Of a group of all ranks that is agreed on then; the first time it is logged.
bool agree_to_stop(const ProcessGroup& group, const std::vector<StopReason>& told);

bool is_stop_agreed() noexcept;

/// For a rank that waits for others that do not come: nobody is there to agree with. Ranks that do come soon stop
/// after their first step.
/// Errors: CommError where this process has been asked to stop.
void require_no_wish(const Environment& environment, std::string_view part);

}  // namespace ddp::comm
