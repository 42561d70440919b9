#pragma once
/// text_of.hpp: what goes into an error's text.

#include <chrono>
#include <exception>
#include <string>

namespace ddp::comm {

/// The exception's text, without the stack that LibTorch appends to its own.
std::string text_of(const std::exception& error);
/// The same for whatever was thrown. `error` must not be null.
std::string text_of(const std::exception_ptr& error);

/// "2.5 s"
std::string in_seconds(std::chrono::milliseconds duration);

}  // namespace ddp::comm
