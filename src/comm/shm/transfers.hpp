#pragma once
/// transfers.hpp: collectives over a Board: reductions in place, and moves of bytes from every rank to every rank.
///
/// A reduction whose data lies in shared memory on every rank is done by whoever has time: it takes chunk after chunk,
/// and a rank that never looks is done for by the others. All else is done in lock step through the ranks' stages,
/// piece by piece, each rank on its own memory; what fits in an entry travels in it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/shm/board.hpp"

namespace ddp::comm::shm {

/// A part of a stream of bytes.
struct Range {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t bytes() const { return end - begin; }
};

struct Target {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// One call, as this rank makes it. Its memory must stand until it has ended.
struct Call {
  Terms terms;
  Label label = {};                   ///< all ranks label the call, or none
  bool wants_labels = false;          ///< all ranks' labels, in their order, although they agree
  std::byte* data = nullptr;          ///< of a reduction
  bool is_shared = false;             ///< data lies in the shared memory
  const std::byte* stream = nullptr;  ///< of a move: what this rank sends, and which part of it to whom
  std::uint64_t stream_bytes = 0;
  std::vector<Range> parts = {};     ///< one a rank
  std::vector<Target> targets = {};  ///< of a move: where each rank's part for this one goes

  std::uint64_t number = 0;        ///< set by enter()
  bool is_bound = false;           ///< set by run(): it has begun what it cannot begin again
  std::vector<Label> labels = {};  ///< every rank's, once it has ended: where wanted, or where they differ
  bool has_differed = false;       ///< the labels do, and nothing was moved; the group can go on
  std::string trouble = {};        ///< why it has failed, once it has ended; the group can go on
};

/// Threads: run() on one at a time; enter() one at a time, beside run().
class Transfers {
 public:
  using Stop = std::function<bool()>;

  /// `memory`: where offsets in entries count from.
  Transfers(Board& board, std::byte* memory) : board_(board), memory_(memory) {}

  /// Needs board.has_room().
  void enter(Call& call);
  /// Runs the calls in their order, each until it has ended. False: stop() was true, and stayed so for a while if the
  /// other ranks have entered too, for then the call most likely ends. It can be run again after that unless is_bound:
  /// nobody knows how far the other ranks are with it, so that the group is over.
  bool run(Call& call, const Stop& stop);
  /// For some microseconds, without sleep.
  bool all_enter_soon(const Call& call);
  /// They have entered it with the same terms, and all with labels or none.
  bool all_agree(const Call& call) const;
  /// All ranks have entered, and running it waits for none of them but for chunks that it has under way.
  bool can_run_alone(const Call& call) const;

 private:
  std::uint32_t chunks_of(std::uint64_t bytes) const;
  bool labels_agree(Call& call) const;
  bool all_share(const Call& call) const;
  std::string described(const Call& call) const;
  bool reduce(Call& call, const Stop& stop);
  void reduce_payloads(Call& call);
  bool reduce_shared(Call& call, const Stop& stop);
  bool reduce_staged(Call& call, const Stop& stop);
  bool reduce_piece(Call& call, std::uint64_t begin, std::uint64_t bytes, const Stop& stop);
  bool move(Call& call, const Stop& stop);
  void take_part(Call& call, int from, const std::byte* piece, Range window) const;
  bool meet_step(const Stop& stop);

  Board& board_;
  std::byte* const memory_;
};

}  // namespace ddp::comm::shm
