#pragma once
/// device_use.hpp: that a rank works on its own device, and on no other.

#include <vector>

#include "ddp/process_group.hpp"

namespace ddp {

/// Errors: std::logic_error where the numbers are not that of the group's device; see DistributedDataParallelOptions.
void require_own_device(const std::vector<int>& device_ids, const std::optional<int>& output_device,
                        const ProcessGroup& group);

/// Warns where this process holds memory, or a context, on devices of the group's kind that are not its own: as a rule
/// all ranks do on the first one, whose memory then runs out first.
void warn_of_other_devices(const ProcessGroup& group);

}  // namespace ddp
