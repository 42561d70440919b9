#pragma once
/// dump_thread.hpp: a thread that writes this process's dump when it is asked to, whatever the others are stuck in.

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>

#include "comm/health.hpp"
#include "ddp/error.hpp"

namespace ddp::comm {

/// Asked by SIGUSR2, whose handler is installed where the program has left that signal at its default, and stays; or
/// by ask(). A process has one at a time.
///
/// Errors: none; where it cannot serve it does not, and trouble() says why.
/// Lifetime: a child of fork() does not serve, and its copy of this object does nothing.
class DumpThread {
 public:
  explicit DumpThread(bool takes_signal) noexcept;
  /// Waits for a dump that is being written: some seconds at most.
  ~DumpThread();
  DumpThread(const DumpThread&) = delete;
  DumpThread& operator=(const DumpThread&) = delete;

  /// Has the process's thread, where there is one, do dump_at_failure(); returns at once.
  static void ask(const Breakage& breakage, Origin origin) noexcept;

  const std::string& trouble() const { return trouble_; }
  /// False in a child of fork().
  bool is_of_this_process() const;

 private:
  void run() noexcept;

  const pid_t process_;
  std::string trouble_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace ddp::comm
