#pragma once
/// rank_state.hpp: what each rank keeps for itself: its random numbers, what its communication hook remembers, and
/// values of the program.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/checkpoint_value.hpp"
#include "train/checkpoint/parts.hpp"

namespace ddp {
class CommHook;
}

namespace ddp::checkpoint {

class RankState {
 public:
  explicit RankState(at::Device device) : device_(device) {}
  void keep(std::shared_ptr<CommHook> hook) { hook_ = std::move(hook); }
  /// Errors: std::logic_error for a name that is kept already.
  void keep(const std::string& name, CheckpointValue value);

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
  std::vector<std::pair<std::string, CheckpointValue>> values_;
};

}  // namespace ddp::checkpoint
