#include "comm/text_of.hpp"

#include <c10/util/Exception.h>

#include <cstdio>

namespace ddp::comm {

std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return text_of(known);
  } catch (...) {
    return "an exception of an unknown type";
  }
}

std::string in_seconds(std::chrono::milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(duration.count()) / 1000.0);
  return text;
}

}  // namespace ddp::comm
