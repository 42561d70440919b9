#pragma once
/// peer_watch.hpp: how ranks learn that another one failed, died or left, outside of the collectives.
///
/// Rank 0 runs a WatchHub; every rank, rank 0 too, holds a WatchLink to it. A link that closes
/// without a goodbye is a dead rank; the hub tells all the others at once. Knows no torch.
///
/// A rank that throws, dies or leaves is known on all others within milliseconds, a host that
/// vanishes within about 30 s. What is not noticed: a rank that is stuck; ask_all() shows where.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::comm {

/// Why the group cannot go on. `echo`: the rank only met another one's failure. `mismatch`: nobody's in
/// particular (rank 0), for the ranks wait in calls that cannot meet; found by the hub.
struct Failure {
  enum class Kind : std::uint8_t { raised, timed_out, lost, echo, mismatch };
  int rank = -1;
  Kind kind = Kind::raised;
  std::string text = {};
};

/// A numbered call of a rank, in at most 256 bytes each of `kind` and `text`.
struct MadeCall {
  std::uint64_t number = 0;
  std::string kind = {};  ///< calls of one number end only where all ranks' kinds are equal
  std::string text = {};  ///< for people
};

/// What ask_all() wants to know of every rank.
struct Question {
  enum class Kind : std::uint8_t {
    status,  ///< its status line
    report,  ///< WatchEvents::report
  };
  Kind kind = Kind::status;
  std::uint64_t call = 0;  ///< which the asker waits in
  /// Not 0: one rank of the group is to ask in this turn for all that wait; others are refused, for reports for good,
  /// else until that rank has not asked for kTurn. A later call, or a higher turn at the same one, is a turn of its
  /// own.
  std::uint32_t turn = 0;

  static constexpr std::chrono::seconds kTurn{8};
};

/// Threads: all callbacks come from the link's own thread, perhaps before the constructor and never
/// after the destructor has returned.
/// They return soon (the link hears nothing meanwhile) and do not throw (std::terminate).
/// Any of them may be empty.
struct WatchEvents {
  /// At most once: the first failure, the cause, the same one on all ranks. Not after leave().
  std::function<void(const Failure&)> on_failure = {};
  /// Another rank's orderly goodbye, also one from before this rank joined.
  std::function<void(int rank, std::uint64_t last_call)> on_left = {};
  /// One line of at most 4 KiB: what this rank did last.
  std::function<std::string()> status = {};
  /// At most 16 KiB: what this rank does while others wait in `call`. May take half a second.
  std::function<std::string(std::uint64_t call)> report = {};
};

/// Threads: all calls from any thread.
class WatchHub {
 public:
  struct Options {
    int world_size = 1;
    std::string token = {};       ///< at most 512 bytes; a stranger without it is turned away
    bool loopback_only = true;    ///< all ranks share this host
    std::vector<int> names = {};  ///< how the text of a mismatch calls the ranks; empty: by their numbers
    /// For how long an echo waits for the real cause: longer than a dying process needs to close
    /// its sockets, short against what a user notices.
    std::chrono::milliseconds echo_wait{300};
    /// A connection that has not introduced itself by then is closed.
    std::chrono::milliseconds hello_limit{5000};
  };
  /// Errors: std::invalid_argument for the options, std::system_error when it cannot listen.
  explicit WatchHub(const Options& options);
  /// Tells the links that the hub closes in order; waits for them at most 500 ms.
  ~WatchHub();

  /// Where it listens: a free port, on the loopback or on all addresses of both families.
  std::uint16_t port() const;
  /// True once every rank has said goodbye or is lost; waits at most `limit`.
  bool wait_all_left(std::chrono::milliseconds limit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Threads: all calls from any thread, but no call from a callback except report().
class WatchLink {
 public:
  struct Options {
    std::string host = {};  ///< a loopback name or address tries both families
    std::uint16_t port = 0;
    int rank = 0;
    int world_size = 1;
    std::string token = {};
    std::chrono::milliseconds connect_timeout{30000};
  };
  /// Errors: ddp::ConfigError when the hub cannot be reached or turns this rank away (another
  /// job's token, another world size, a rank that is there already), with its reason.
  WatchLink(const Options& options, WatchEvents events);
  /// Without leave() before it, the others hear that this rank is lost.
  ~WatchLink();

  /// Publishes a failure of this rank; the first call counts, later ones only wait. Returns once
  /// the hub has told the others (an echo: has decided), within 1 s.
  /// Threads: takes no lock and no memory, so it serves a std::terminate handler too.
  void report(Failure::Kind kind, std::string_view text) noexcept;
  /// Every rank's answer; for a rank that gives none in time, an empty string. None where it is another rank's turn.
  /// Answers come from the links' own threads: a rank whose main thread is stuck answers too. Those of `held` ranks, of
  /// which it is known that they cannot answer (empty: of none), are not waited for.
  std::optional<std::vector<std::string>> ask_all(const Question& question, std::chrono::milliseconds limit,
                                                  const std::vector<bool>& held = {});
  /// Their status lines.
  std::vector<std::string> ask_all(std::chrono::milliseconds limit) {
    return ask_all(Question{}, limit).value_or(std::vector<std::string>());
  }
  /// This rank waits in `calls[0]`; the others are those that it made just before, the latest first, at
  /// most 8 in all. Where all ranks wait and their calls of one number are of different kinds,
  /// everybody hears of a mismatch. Returns at once; the latest call of this function counts.
  void waits_in(const std::vector<MadeCall>& calls);
  /// Says goodbye: this rank has completed `last_call` calls and makes no more. Returns once the
  /// hub knows, within 1 s. The first call counts.
  void leave(std::uint64_t last_call) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::comm
