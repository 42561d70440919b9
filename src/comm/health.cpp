#include "comm/health.hpp"

namespace ddp::comm {

void Breakage::raise(Origin origin, std::string_view part) const {
  const auto rank = "rank " + std::to_string(peer);
  switch (kind) {
    case Kind::peer_timed_out:
      throw TimeoutError(origin, part, "as " + rank + " has found: " + text);
    case Kind::peer_raised:
      throw PeerLostError(origin, part, rank + " failed: " + text, {}, peer);
    case Kind::peer_lost:
      throw PeerLostError(origin, part, rank + ' ' + text, {}, peer);
    case Kind::peer_left:
      throw PeerLostError(origin, part, rank + ' ' + text,
                          "the ranks make different numbers of calls: look for a collective under an `if (rank == 0)`, "
                          "or for unequal numbers of batches",
                          peer);
    case Kind::peer_unknown:
      throw PeerLostError(origin, part, text, "look at the other ranks' output for the first failure", -1);
    case Kind::timed_out:
      throw TimeoutError(origin, part, text);
    case Kind::mismatch:
      throw CallMismatchError(origin, part, text,
                              "make the same calls on all ranks, in one order: look for a call under an "
                              "`if (rank == 0)` or after a loop of unequal length; the group cannot go on");
    case Kind::failed_here:
      break;
  }
  throw CommError(origin, part, "this rank has failed: " + text);
}

void Health::peer_failed(const Failure& failure) {
  if (failure.kind == Failure::Kind::mismatch) {
    break_with({Breakage::Kind::mismatch, -1, failure.text});
    return;
  }
  if (failure.rank == origin_.rank) return;
  Breakage breakage{Breakage::Kind::peer_raised, failure.rank, failure.text};
  if (failure.kind == Failure::Kind::timed_out) breakage.kind = Breakage::Kind::peer_timed_out;
  if (failure.kind == Failure::Kind::lost) {
    breakage.kind = Breakage::Kind::peer_lost;
    breakage.text = "died (" + failure.text + ')';
  }
  break_with(std::move(breakage));
}

void Health::peer_left(int rank, std::uint64_t last_call) {
  update([&] {
    left_.emplace(rank, last_call);
    is_clear_ = false;
  });
}

bool Health::break_with(Breakage breakage) {
  bool first = false;
  update([&] {
    first = !breakage_;
    if (first) breakage_ = std::move(breakage);
    is_clear_ = false;
  });
  return first;
}

std::optional<Breakage> Health::breakage() const {
  const std::lock_guard lock(mutex_);
  return breakage_;
}

std::optional<Breakage> Health::obstacle(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return find_obstacle(number);
}

std::optional<Breakage> Health::departure() const {
  const std::lock_guard lock(mutex_);
  if (left_.empty()) return std::nullopt;
  return departure_of(left_.begin()->first, left_.begin()->second);
}

std::optional<Breakage> Health::departure(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = left_.find(rank);
  if (found == left_.end()) return std::nullopt;
  return departure_of(rank, found->second);
}

std::optional<Breakage> Health::find_obstacle(std::uint64_t number) const {
  if (breakage_) return breakage_;
  for (const auto& [rank, last_call] : left_)
    if (last_call < number) return departure_of(rank, last_call);
  return std::nullopt;
}

Breakage Health::departure_of(int rank, std::uint64_t last_call) const {
  if (last_call == 0) return {Breakage::Kind::peer_left, rank, "left the group before any call"};
  auto text = "left the group after call #" + std::to_string(last_call);
  // A step's number is that of the steps before it.
  if (const auto step = recorder_.step_of(last_call + 1)) text += ", after " + std::to_string(*step) + " steps";
  return {Breakage::Kind::peer_left, rank, std::move(text)};
}

}  // namespace ddp::comm
