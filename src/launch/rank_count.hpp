#pragma once
/// rank_count.hpp: how many ranks a machine is for.

#include <string>

namespace ddp::launch {

/// What --nproc-per-node says: a number; "cpu", the cores that this process may use; "gpu", the GPUs that it sees; or
/// "auto", the GPUs where it sees one, else the cores. 0 for anything else.
/// Errors: ConfigError for "gpu" where there is none.
int local_ranks(const std::string& text);

/// As the CUDA driver counts them, so that CUDA_VISIBLE_DEVICES is heeded. Asked by a process of its own, which loads
/// the driver and ends. 0 where there is no driver, or no answer within half a minute.
int visible_gpus();

}  // namespace ddp::launch
