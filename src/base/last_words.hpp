#pragma once
/// last_words.hpp: the text with which a program ends.

#include <string>

namespace ddp::log {

/// On standard error as it is, whatever DDP_LOG_LEVEL says, and in this rank's file, if it has one, as lines of level
/// error. Threads: safe.
void put_last_words(const std::string& text);

}  // namespace ddp::log
