#pragma once
/// formatted.hpp: text from format strings, as std::format()'s, for files that see LibTorch.

#include <fmt/base.h>

#include <string>
#include <utility>

namespace ddp {

/// Errors: fmt::format_error.
std::string vformatted(fmt::string_view format, fmt::format_args arguments);

template <class... T>
std::string formatted(fmt::format_string<T...> format, T&&... values) {
  return vformatted(format.get(), fmt::make_format_args(values...));
}

}  // namespace ddp
