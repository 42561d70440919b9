#include "comm/dump_signals.hpp"

#include <cstdlib>
#include <string_view>

#include "ddp/error.hpp"

namespace ddp::comm {

bool dump_signals_are_wanted() {
  const char* const value = std::getenv("DDP_DUMP_SIGNALS");
  if (value == nullptr || std::string_view(value) == "1") return true;
  if (std::string_view(value) == "0") return false;
  throw ConfigError({}, "init_process_group", "DDP_DUMP_SIGNALS=" + std::string(value) + " is no switch",
                    "set it to 0 for no dumps at signals, or to 1");
}

}  // namespace ddp::comm
