#pragma once
/// watch_mismatch.hpp: do the ranks wait in calls that can never meet?
///
/// What a rank has called under a number never changes, so that what is compared here may be old
/// without being wrong: two kinds under one number are a mistake of the program whenever it is seen.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/peer_watch.hpp"

namespace ddp::comm::watch {

inline constexpr std::size_t kMaxCalls = 8;       ///< of one rank
inline constexpr std::size_t kMaxCallText = 256;  ///< of a kind or a text

/// How a call's text ends.
inline constexpr const char* kByModel = ", made by the wrapped model";
inline constexpr const char* kByProgram = ", called by the program";
inline constexpr const char* kByProgramAfterItsData = ", called by the program after its last batch";

/// The body of a frame `waiting`: for each call its number (8), two lengths (2, 2), kind, text.
std::string encode_calls(const std::vector<MadeCall>& calls);
/// None when the body is not of this form.
std::optional<std::vector<MadeCall>> decode_calls(std::string_view body);

/// What each rank waits in.
class Waits {
 public:
  /// `names`: how to call the ranks.
  explicit Waits(std::vector<int> names) : names_(std::move(names)), calls_(names_.size()) {}

  void set(int rank, std::vector<MadeCall> calls) { calls_[static_cast<std::size_t>(rank)] = std::move(calls); }
  /// The ranks' different calls in words, once all ranks wait and their calls can never meet.
  std::optional<std::string> mismatch() const;

 private:
  std::vector<int> names_;
  std::vector<std::vector<MadeCall>> calls_;
};

}  // namespace ddp::comm::watch
