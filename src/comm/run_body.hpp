#pragma once
/// run_body.hpp: what ddp::run() does, for those who want to know how it went.

#include <functional>
#include <string>

namespace ddp::comm {

/// An exception that left a body.
struct Thrown {
  int exit_code = 1;
  std::string text;
  std::string type;  ///< "std::bad_alloc"
};

/// ddp::run(). `on_exception` hears of the exception before this rank leaves its groups; it must not throw.
int run_body(const std::function<void()>& body, const std::function<void(const Thrown&)>& on_exception);

}  // namespace ddp::comm
