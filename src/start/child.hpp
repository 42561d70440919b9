#pragma once
/// child.hpp: a child of this process by its descriptor, so that no other is ever meant, waited for or woken by it.

#include <sys/types.h>

#include <optional>

#include "base/descriptor.hpp"

namespace ddp::start {

/// Lifetime: the destructor kills it where it still runs, and waits for its end.
class Child {
 public:
  /// `pid` is a child that nobody has waited for yet. Errors: std::system_error, and the child has been killed.
  explicit Child(pid_t pid);
  Child(Child&&) noexcept = default;
  ~Child();

  /// Looks whether it has ended, without waiting.
  bool has_ended();
  void send(int signal) const;

  /// Readable once it has ended.
  int descriptor() const { return process_.get(); }
  /// Of one that has ended, as from waitpid(); none where somebody else in this process has taken it: a program that
  /// waits for all its children, or ignores SIGCHLD.
  std::optional<int> status() const { return status_; }

 private:
  bool is_over(int timeout_ms) const;

  Descriptor process_;
  bool ended_ = false;
  std::optional<int> status_;
};

}  // namespace ddp::start
