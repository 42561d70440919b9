#pragma once
/// rank_state.hpp: what each rank keeps for itself: its random numbers, and what its communication hook remembers.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoint/parts.hpp"

namespace ddp {
class CommHook;
}

namespace ddp::checkpoint {

class RankState {
 public:
  explicit RankState(at::Device device) : device_(device) {}
  void keep(std::shared_ptr<CommHook> hook) { hook_ = std::move(hook); }

  /// This rank's, to travel. Errors: std::exception
  std::string to_bytes() const;
  /// Of all ranks, in order, for the file: a list.
  static Value from_bytes(const std::vector<std::string>& all);

  /// Checks this rank's state. Errors: std::exception
  Commit stage(const Place& ranks, int rank) const;
  /// What is not restored, in words; the same on every rank.
  std::vector<std::string> remarks(const Place& root, int world_size) const;
  /// Whether the file has as many ranks.
  static bool fits(const Place& root, int world_size);

 private:
  at::Device device_;
  std::shared_ptr<CommHook> hook_;
};

}  // namespace ddp::checkpoint
