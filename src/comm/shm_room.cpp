#include "comm/shm_room.hpp"

#include <sys/statvfs.h>

#include <cstdint>

namespace ddp::comm {

std::string too_little_room(const char* path, int ranks) {
  constexpr std::uint64_t segment = 9637888, segments_of_a_rank = 2;
  struct statvfs room{};
  if (ranks < 2 || ::statvfs(path, &room) != 0) return {};
  const std::uint64_t free = std::uint64_t{room.f_bavail} * room.f_frsize;
  const auto needed = segment * segments_of_a_rank * static_cast<std::uint64_t>(ranks);
  if (free >= needed) return {};
  const auto in_mib = [](std::uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; };
  return std::string(path) + " has " + std::to_string(free >> 20) + " MiB free, and NCCL may take " + in_mib(needed) +
         " of it for " + std::to_string(ranks) +
         " ranks on this host: give a container more (docker run --shm-size=1g), or set NCCL_SHM_DISABLE=1, which is "
         "slower where GPUs do not reach each other directly";
}

}  // namespace ddp::comm
