#pragma once
/// slurm_lists.hpp: Slurm's compressed lists.

#include <optional>
#include <string>
#include <string_view>

namespace ddp::comm {

/// The first host of a list like "node[003-005,9],other" or "rack[1-2]node[07-08]"; none when it is malformed.
std::optional<std::string> first_host(std::string_view list);

/// The number of tasks on node `node` in a list like "2(x3),1"; none when it is malformed or too short.
std::optional<int> tasks_on_node(std::string_view list, int node);

}  // namespace ddp::comm
