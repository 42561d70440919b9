#pragma once
/// thrown.hpp: the text of an exception that a test expects.

#include <exception>
#include <functional>
#include <string>

namespace ddp::testing {

/// Of an exception of this type, which `action` throws, or "no error".
template <class Error = std::exception>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace ddp::testing
