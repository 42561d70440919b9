#pragma once
/// error_text.hpp: an exception's text without what LibTorch adds below it, and what our own say around it.

#include <c10/util/Exception.h>

#include <exception>
#include <optional>
#include <string>

#include "ddp/error.hpp"

namespace ddp::checkpoint {

inline std::string text_of(const std::exception& error) {
  if (const auto* of_ddp = dynamic_cast<const Error*>(&error)) return of_ddp->happening();
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
