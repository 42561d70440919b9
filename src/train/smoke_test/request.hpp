#pragma once
/// request.hpp: whether this program was started to be checked (DDP_CHECK) instead of to train.

namespace ddp {
class ProcessGroup;
}

namespace ddp::smoke {

enum class Request { none, brief, extended };

/// DDP_CHECK: unset, empty or 0; 1; or long. Errors: ConfigError for anything else.
Request request();

/// While one lives, models are wrapped for a smoke test. Threads: safe.
class Running {
 public:
  Running();
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

/// Errors: ConfigError where a check was asked for and the program is about to train instead.
void refuse_unchecked(const ProcessGroup& group);

}  // namespace ddp::smoke
