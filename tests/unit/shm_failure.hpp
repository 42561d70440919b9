#pragma once
/// shm_failure.hpp: what the tests of the hand-over look at from both sides.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "comm/shm/unavailable.hpp"

namespace ddp::comm::shm::testing {

/// The text of the error that `call` ends with.
inline std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Unavailable& error) {
    return error.what();
  }
  return "none";
}

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace ddp::comm::shm::testing
