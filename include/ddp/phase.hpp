#pragma once
/// phase.hpp: where this rank is, in words of the program, for what is said of ranks that others wait for. Optional:
/// DistributedDataParallel and make_data_loader mark forward, backward and loading by themselves.

#include <cstdint>

namespace ddp {

/// The training step that begins, in all groups of the process, from now on instead of what their wrappers or
/// ProcessGroup::mark_step() count; a negative number leaves it to them again. Costs a nanosecond.
void step(std::int64_t number) noexcept;

/// What this rank does while it lives: `const ddp::Phase phase("validation");`
///
/// Threads: by the one that trains; phases nest. `name` must live as long as the program: a literal.
class [[nodiscard]] Phase {
 public:
  explicit Phase(const char* name) noexcept;
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  const char* outer_;
  std::int64_t outer_since_;
};

}  // namespace ddp
