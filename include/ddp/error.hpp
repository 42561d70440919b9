#pragma once
/// error.hpp: one exception type for all that can go wrong between ranks, with kinds that
/// say what the caller can do. Every text reads `rank 2 of 4: part: what happened; remedy`.

#include <stdexcept>
#include <string>
#include <string_view>

namespace ddp {

/// The rank that speaks. With rank < 0 (none is known yet) the text starts with the part.
struct Origin {
  int rank = -1;
  int world_size = 0;
};

/// Base of all errors of this library. Misuse by the programmer is a std::logic_error instead.
class Error : public std::runtime_error {
 public:
  /// `part` is the piece that speaks ("reducer"), `remedy` what the reader can do; it may be empty.
  Error(Origin origin, std::string_view part, std::string_view what, std::string_view remedy = {});

  Origin origin() const noexcept { return origin_; }
  /// The text without who speaks and without the remedy, for an error that tells of another.
  const std::string& happening() const noexcept { return happening_; }

 private:
  Origin origin_;
  std::string happening_;
};

/// A variable of the environment, an option or an address is missing, malformed or contradictory.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// The ranks hold different models. Thrown on every rank.
class ModelMismatchError : public Error {
 public:
  using Error::Error;
};

/// This backward missed or doubled a gradient.
class GradientError : public Error {
 public:
  using Error::Error;
};

/// A collective failed; the text says which ranks, which call and which step.
class CommError : public Error {
 public:
  using Error::Error;
};

/// The ranks made different calls (another operation, size, dtype, root or order). Thrown on every rank. Where
/// the ranks could compare the calls, before any tensor moved, the group is not broken; where they
/// were found waiting in calls that never meet, it is, and the text says so.
class CallMismatchError : public CommError {
 public:
  using CommError::CommError;
};

/// A collective did not end within its timeout.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

/// Another rank failed, died or left the group while this one needed it.
class PeerLostError : public CommError {
 public:
  /// `peer` is the rank that was lost, -1 where it could not be found out.
  PeerLostError(Origin origin, std::string_view part, std::string_view what, std::string_view remedy, int peer);

  int peer() const noexcept { return peer_; }

 private:
  int peer_;
};

/// A checkpoint could not be written or read.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

}  // namespace ddp
