#pragma once
/// service_thread.hpp: a thread of the library's own beside the program's.

#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>

#include "base/descriptor.hpp"

namespace ddp {

/// It takes none of the program's signals, but for those of a fault.
/// Lifetime: a child of fork() has no such thread, and its copy of this object does nothing.
class ServiceThread {
 public:
  /// `body` returns soon after its argument, a descriptor, becomes readable; it does not throw (std::terminate).
  /// `name`, of at most 15 characters, is what `ps -L` shows. Errors: std::system_error
  ServiceThread(const char* name, std::function<void(int stop)> body);
  /// Returns when the body has.
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  /// False in a child of fork().
  bool is_of_this_process() const;

 private:
  const pid_t process_;
  const Descriptor stop_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace ddp
