#pragma once
/// console.hpp: the ranks' lines on the launcher's own standard output and error.

#include <optional>
#include <string>
#include <string_view>

namespace ddp::launch {

/// Lines of several ranks in order of arrival, each whole and with "[rank 1] " before it. On a terminal that prefix has
/// the rank's colour, and the last line may be an update (of a progress bar): it stays below the others until it is
/// replaced. Writes wait for whoever reads.
class Console {
 public:
  /// `ranks`: the world's, for the prefixes' width; of one alone there is no prefix.
  explicit Console(int ranks);

  /// `descriptor`: 1 or 2. rank -1: the launcher's own line, without a prefix.
  void add(int descriptor, int rank, std::string_view text, bool is_update);
  /// Writes what was added. False once nobody reads any more.
  bool flush();
  /// The same for good: an update stays as a line.
  void finish();

 private:
  struct Stream {
    int descriptor;
    bool is_terminal;
    bool has_colours;
    std::string waiting = {};
    bool is_open = true;
    bool has_failed = false;
  };

  struct Source {
    int descriptor, rank;
    bool operator==(const Source&) const = default;
  };
  struct Update {
    Source source;
    std::string text;  // with its prefix
  };

  Stream& stream(int descriptor) { return descriptor == 1 ? output_ : error_; }
  std::string prefix(const Stream& stream, int rank) const;
  void take_update_away(Stream& stream);
  void keep_order(const Stream& next);
  void write(Stream& stream);

  int ranks_;
  Stream output_, error_;
  std::optional<Update> update_;
  bool is_drawn_ = false;  // the update stands on the screen
};

}  // namespace ddp::launch
