#pragma once
/// call.hpp: one collective, or one side of a message, as this rank has called it.

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/signature.hpp"

namespace ddp::comm {

/// How the ranks come together in a call.
enum class Meeting : std::uint8_t {
  signatures,  ///< they compare what they have called before anything is sent
  plan,        ///< they have agreed on it before
  roll_call,   ///< each looks in the store for the others
  alone,       ///< the same, for what this rank does for all
};

/// Numbers count from 1 and agree between the ranks. A message between two ranks has number 0: the others do not count
/// it.
struct Call {
  Signature signature;
  std::string label = {};  ///< the caller's, may be empty
  Meeting meeting = Meeting::signatures;
  int peer = -1;             ///< a message's other rank in the world
  bool sends = false;        ///< of a message
  std::int64_t message = 0;  ///< which one to or from that rank, from 1

  std::uint64_t number = 0;  ///< the rest is set by the recorder
  std::int64_t step = -1;    ///< -1: no step was marked
  std::uint64_t ticket = 0;  ///< the recorder's
  std::chrono::steady_clock::time_point queued{};

  /// `all_reduce #12 "bucket 1", step 5`
  std::string name() const;
  /// `all_reduce #12 "bucket 1" (64 floats) in step 5`
  std::string description() const;
  /// `64 floats`; empty where nothing is moved
  std::string amount() const;
  /// Calls of one number end only where these are equal on all ranks.
  std::string kind() const;
};

/// After so long from now, or after a year, which the clock can hold.
std::chrono::steady_clock::time_point deadline_in(std::chrono::milliseconds timeout);
/// When it has lasted `timeout`; a year from its beginning for longer ones, which the clock might not hold.
std::chrono::steady_clock::time_point deadline_of(const Call& call, std::chrono::milliseconds timeout);

}  // namespace ddp::comm
