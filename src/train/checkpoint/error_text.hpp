#pragma once
/// error_text.hpp: an exception's text without what LibTorch adds below it.

#include <c10/util/Exception.h>

#include <exception>
#include <optional>
#include <string>

namespace ddp::checkpoint {

inline std::string text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

/// The text of the exception that `action` throws, or nullopt.
template <class Action>
std::optional<std::string> error_of(const Action& action) {
  try {
    action();
    return std::nullopt;
  } catch (const std::exception& error) {
    return text_of(error);
  } catch (...) {
    return "an exception of a type of its own";
  }
}

}  // namespace ddp::checkpoint
