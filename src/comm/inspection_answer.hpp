#pragma once
/// inspection_answer.hpp: what this process tells those who ask it from outside what its job does.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process_key.hpp"
#include "comm/session.hpp"

namespace ddp::comm {

/// A line that says who speaks, and for each of the sessions that this rank has not left one about the group and one
/// a rank. With `about` an empty text where that process is no rank of theirs. Takes a tenth of a second, and a whole
/// one where a rank is silent.
std::string inspection_answer(const std::vector<std::shared_ptr<Session>>& sessions,
                              const std::optional<ProcessKey>& about);

}  // namespace ddp::comm
