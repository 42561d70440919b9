#pragma once
/// peer_watch.hpp: how ranks learn that another one failed, died or left, outside of the collectives.
///
/// Rank 0 runs a WatchHub; every rank, rank 0 too, holds a WatchLink to it. A link that closes
/// without a goodbye is a dead rank; the hub tells all the others at once. Knows no torch.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::comm {

/// Why the group cannot go on. `echo`: the rank only met another one's failure.
struct Failure {
  enum class Kind { raised, lost, echo };
  int rank = -1;
  Kind kind = Kind::raised;
  std::string text;
};

/// Threads: all callbacks come from the link's own thread, never after the destructor has returned.
struct WatchEvents {
  std::function<void(const Failure&)> on_failure;                        ///< once: the first one, the cause
  std::function<void(int rank, std::uint64_t last_call)> on_left;        ///< an orderly goodbye
  std::function<std::string()> status;                                   ///< one line: what this rank did last
};

class WatchHub {
 public:
  struct Options {
    int world_size = 1;
    std::string token;        ///< a stranger without it is turned away
    bool loopback_only = true;
  };
  explicit WatchHub(const Options& options);
  ~WatchHub();  ///< tells the links that the hub closes in order

  std::uint16_t port() const;
  /// True once every rank has said goodbye or is lost; waits at most `limit`.
  bool wait_all_left(std::chrono::milliseconds limit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class WatchLink {
 public:
  struct Options {
    std::string host;
    std::uint16_t port = 0;
    int rank = 0;
    int world_size = 1;
    std::string token;
    std::chrono::milliseconds connect_timeout{30000};
  };
  /// Errors: ddp::ConfigError when the hub cannot be reached or turns this rank away.
  WatchLink(const Options& options, WatchEvents events);
  ~WatchLink();

  /// Publishes a failure of this rank. Returns once it is handed to the kernel, within 1 s.
  void report(Failure::Kind kind, std::string_view text) noexcept;
  /// Every rank's status line; for a rank that does not answer in time, an empty string.
  std::vector<std::string> ask_all(std::chrono::milliseconds limit);
  /// Says goodbye: this rank has completed `last_call` calls and makes no more. Bounded by 1 s.
  void leave(std::uint64_t last_call) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::comm
