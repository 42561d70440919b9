#pragma once
/// progress.hpp: whose work it is to bring a group's calls to their ends, where the backend has no threads for that.

#include <functional>

namespace ddp::comm {

/// Threads: all members are safe.
class Progress {
 public:
  virtual ~Progress() = default;
  /// Works on the group's calls, on this thread or beside one that does already, until `is_enough()`. It is asked
  /// after each call and a hundred times a second; where it says so in the middle of a call, the group is over.
  virtual void help(const std::function<bool()>& is_enough) = 0;
  /// The calls made so far end from now on without help.
  virtual void go_on_alone() noexcept = 0;
  /// No call of the group can end any more.
  virtual bool is_over() const = 0;
};

}  // namespace ddp::comm
