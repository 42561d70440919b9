#pragma once
/// say.hpp: the launcher's own lines.

#include <string_view>

namespace ddp::launch {

/// Writes "ddprun: text" and a newline to standard error, in one piece.
void say(std::string_view text);

}  // namespace ddp::launch
