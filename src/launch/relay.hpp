#pragma once
/// relay.hpp: the process that carries the ranks' output.

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "launch/output_plan.hpp"
#include "start/child.hpp"

namespace ddp::launch {

/// Reads what the local ranks write, and writes it as whole lines to the launcher's own output, to files, or both. A
/// process of its own: whoever reads the launcher's output may stop, and then the ranks wait, as they would without a
/// launcher, but the launcher does not.
///
/// A rank writes into a terminal of its own where the launcher's stream is one, else into a pipe.
class Relay {
 public:
  /// The last lines of a rank's standard error that are kept.
  static constexpr std::size_t kTailLines = 12, kTailBytes = 4096;

  struct RankEnds {
    Descriptor output, error;  ///< what the rank writes into; closed here once it has them
  };

  /// Opens the files and starts the process. `world_size` and `first_rank` are for the prefixes.
  /// Errors: ConfigError for a file that cannot be written; std::system_error.
  Relay(const std::vector<RankTargets>& plan, int first_rank, int world_size);
  /// Ends the process, if it is still there.
  ~Relay();
  Relay(const Relay&) = delete;

  pid_t process() const { return pid_; }
  RankEnds take_ends(int local_rank);
  /// The launcher's own lines may be written here.
  int own_lines() const { return own_lines_.get(); }

  /// The ranks are gone: carry what is there, and end.
  void finish();
  /// Readable once there is something for is_over() to take.
  int descriptor() const { return tails_.get(); }
  /// After finish(), whether all has been written; before, whether somebody has ended the process. Does not wait.
  bool is_over();
  /// For one that nobody reads from.
  void give_up();
  /// After that: the last lines of each local rank's standard error that wrote any.
  const std::map<int, std::string>& tails() const { return tails_by_rank_; }

 private:
  std::vector<RankEnds> ends_;
  Descriptor own_lines_, control_, tails_;
  pid_t pid_ = -1;
  std::unique_ptr<start::Child> process_;
  std::string heard_;
  std::map<int, std::string> tails_by_rank_;
};

}  // namespace ddp::launch
