#pragma once
/// call_record.hpp: a call as it lies in the flight recorder: of a fixed size, so that it can be read where no memory
/// may be taken.

#include <array>
#include <cstdint>
#include <string_view>

#include "comm/call.hpp"

namespace ddp::comm {

/// Times are counts of the steady clock since its zero.
struct CallRecord {
  static constexpr std::size_t kDimensions = 6;  ///< more have their last ones multiplied together

  std::uint64_t number = 0;
  std::int64_t step = 0, queued = 0, message = 0;
  const char* phase = "";
  std::int32_t peer = 0, root = 0;
  std::int8_t operation = 0, reduce_op = 0, dtype = 0, dimensions = 0;
  std::uint8_t first_differs = 0, meeting = 0, sends = 0, label_bytes = 0;
  std::array<std::int64_t, kDimensions> sizes{};
  std::array<char, 64> label{};

  CallRecord() = default;
  /// In the phase of now.
  explicit CallRecord(const Call& made);

  Call call(std::uint64_t ticket) const;
  std::string_view label_text() const noexcept { return {label.data(), label_bytes}; }
};

/// With its later times; 0: not yet.
struct TimedRecord {
  CallRecord call;
  std::uint64_t ticket = 0;
  std::int64_t started = 0, ended = 0;
};

}  // namespace ddp::comm
