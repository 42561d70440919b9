#pragma once
/// spawn.hpp: ranks from within one program, without a launcher.

#include <chrono>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <string_view>

#include "ddp/error.hpp"

namespace ddp {

struct SpawnOptions {
  int nnodes = 1;     ///< hosts on which this same program spawns as many ranks
  int node_rank = 0;  ///< of this host
  /// Where rank 0 is met: the host of node 0, and a free port of it. For several nodes alone: on one host the ranks
  /// meet on a port that nobody else can have.
  std::string master_addr = {};
  std::uint16_t master_port = 0;
  /// From SIGTERM to SIGKILL for ranks that still run 3 s after another one failed.
  std::chrono::milliseconds shutdown_timeout{5000};
};

/// A rank that spawn() had started failed. The text has its rank and its exception's text, or how its process ended.
class SpawnError : public Error {
 public:
  /// How the rank ended. `rank` is the one among all nodes' ranks.
  struct Ending {
    int rank = 0;
    int exit_code = -1;       ///< -1: a signal ended it, or nobody knows
    int signal = 0;           ///< 0: none
    std::string thrown = {};  ///< type of its exception, such as "std::bad_alloc"; empty: it threw none
  };
  SpawnError(int world_size, std::string_view what, std::string_view remedy, Ending ending);

  int rank() const noexcept { return ending_.rank; }
  int exit_code() const noexcept { return ending_.exit_code; }
  int signal() const noexcept { return ending_.signal; }
  const std::string& thrown() const noexcept { return ending_.thrown; }

 private:
  Ending ending_;
};

/// Runs `body(local_rank)` on `ranks` processes of this host and returns once all have ended well, as
/// torch.multiprocessing.spawn does. In `body`, init_process_group() finds the others.
///
/// Each rank is this program started anew, so that it works however many threads there are: with the same arguments, in
/// the folder where this one was started, with the present environment, and with nothing on standard input. **It runs
/// main() again up to this same call**; there it runs `body` as ddp::run() does, and ends by std::exit(). So what
/// stands before spawn() runs in every rank too, and must come to spawn() again; `body` sees what it computed there,
/// not what this process holds. What stands behind it runs in this process alone. Earlier calls of spawn() end at once
/// in a rank, as they ended here: they return, or throw a SpawnError with the same numbers.
///
/// The ranks share this process's terminal and process group, and die with it, even by SIGKILL. OMP_NUM_THREADS, unless
/// it is set, becomes the allowed cores divided by `ranks`.
///
/// Errors: SpawnError for the rank that failed first, once the others have ended: they have 3 s for it, then come
/// SIGTERM and SIGKILL. ConfigError for senseless arguments, and in a process that a launcher has made a rank already.
/// std::logic_error inside of `body`, and where two threads are in the same call at once.
/// Threads: any; several may spawn at once, from different lines.
void spawn(int ranks, const std::function<void(int local_rank)>& body, const SpawnOptions& options = {},
           std::source_location place = std::source_location::current());

}  // namespace ddp
