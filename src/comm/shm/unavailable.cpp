#include "comm/shm/unavailable.hpp"

#include <array>
#include <cstdio>

namespace ddp::comm::shm {

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> units{"bytes", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  std::array<char, 40> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.1f", value);
  std::string number(text.data(), static_cast<std::size_t>(length));
  if (number.ends_with(".0")) number.resize(number.size() - 2);
  return number + " " + units[unit];
}

}  // namespace ddp::comm::shm
