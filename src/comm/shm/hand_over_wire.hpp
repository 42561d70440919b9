#pragma once
/// hand_over_wire.hpp: what the two sides of the hand-over say, each in one packet. They share a host, so
/// numbers are in its own order.

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "comm/watch_socket.hpp"

namespace ddp::comm::shm {

inline constexpr std::array<char, 8> kMagic{'D', 'D', 'P', 'S', 'H', 'M', 'E', 'M'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kTokenLength = 32;  // 128 bits in hexadecimal digits

struct Request {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t rank = 0;
  std::array<char, kTokenLength> token{};
};

/// Comes with the memory's descriptor. A refusal is the end of the connection.
struct Answer {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t ranks = 0;
  std::uint64_t control_bytes = 0;
  std::uint64_t region_bytes = 0;
};

// Every byte is said on purpose: none of them is padding.
static_assert(std::has_unique_object_representations_v<Request> && std::has_unique_object_representations_v<Answer>);

struct AbstractAddress {
  sockaddr_un raw{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&raw); }
};

/// None where the name is empty or too long for a socket.
std::optional<AbstractAddress> abstract_address(std::string_view name) noexcept;

/// A socket that keeps packets apart and never blocks.
watch::Descriptor packet_socket() noexcept;

/// Whom the other end belongs to; none where the kernel does not say.
std::optional<uid_t> user_of(const watch::Descriptor& socket) noexcept;

}  // namespace ddp::comm::shm
