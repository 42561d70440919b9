#include "start/spawn_calls.hpp"

#include <string_view>

namespace ddp::start {

std::uint64_t place_of(const std::source_location& location) {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  const auto add = [&hash](std::uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
  for (const char byte : std::string_view(location.file_name())) add(static_cast<unsigned char>(byte));
  add(location.line());
  add(location.column());
  return hash;
}

int SpawnCalls::begin(std::uint64_t place) {
  const std::lock_guard lock(mutex_);
  auto& begun = begun_[place];
  return begun == static_cast<int>(ended_[place].size()) ? ++begun : 0;
}

void SpawnCalls::end(std::uint64_t place, const SpawnPast& how) {
  const std::lock_guard lock(mutex_);
  ended_[place].push_back(how);
}

SpawnPasts SpawnCalls::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace ddp::start
