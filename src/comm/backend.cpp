#include "comm/backend.hpp"

#include "ddp/error.hpp"

namespace ddp::comm {

std::string choose_backend(std::string_view name, const Environment& environment) {
  if (name == "auto" || name == "gloo") return "gloo";
  const Origin origin{environment.rank, environment.world_size};
  const std::string quoted = '"' + std::string(name) + '"';
  if (name == "nccl" || name == "shm")
    throw ConfigError(origin, "init_process_group", "backend " + quoted + " is not in this build yet",
                      "use \"auto\" or \"gloo\"");
  throw ConfigError(origin, "init_process_group", "unknown backend " + quoted,
                    "known are \"auto\", \"gloo\", \"nccl\" and \"shm\"");
}

}  // namespace ddp::comm
