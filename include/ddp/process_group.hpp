#pragma once
/// process_group.hpp: the ranks of a job and the collectives between them.
///
/// A rank that throws, dies or leaves ends the others' waits within seconds, with its number and
/// its text, whatever the timeout. See docs/errors.md.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/environment.hpp"
#include "ddp/error.hpp"
#include "ddp/work.hpp"

namespace ddp {

enum class ReduceOp { sum, avg, min, max, product };

/// How a group is made. Every field has a default.
struct ProcessGroupOptions {
  /// "auto" or "gloo". "nccl" and "shm" are known names without a backend in this build: ConfigError.
  std::string backend = "auto";
  /// Limit of each collective and of the start-up. Unset: DDP_TIMEOUT (seconds), else 30 minutes.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Unset: Environment::from_variables().
  std::optional<Environment> environment = std::nullopt;
  /// Path of a file on a file system that all ranks share; empty: TCP at the environment's address.
  std::string store_file = {};
};

/// Options of one call.
struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;  ///< unset: the group's
  std::string label = {};  ///< shown where the call is named in errors and logs
};

/// A group of ranks over one backend. Every collective is numbered and recorded.
///
/// Threads: calls from several threads are safe, but all ranks must make them in the same order.
/// Tensors: on device(); any strides; results are written in place.
/// Errors: see Work::wait(). A broken group throws the same error again at every later call.
/// Lifetime: shared. The destructor says goodbye without waiting; shutdown() waits a little.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  struct Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// Collective. Reduces element by element over the ranks. Half types are summed in float and
  /// rounded once; complex knows sum, avg; bool and integers know no avg.
  void all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
  [[nodiscard]] Work all_reduce_async(at::Tensor& tensor, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

  /// Collective. Copies rank `root`'s tensor to all, byte by byte: any dtype.
  void broadcast(at::Tensor& tensor, int root = 0, const CallOptions& options = {});
  [[nodiscard]] Work broadcast_async(at::Tensor& tensor, int root = 0, const CallOptions& options = {});

  /// Collective. Every rank's tensor, in rank order. Dtype and all dimensions but the first must
  /// agree; the first may differ, 0 included. Any dtype.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor, const CallOptions& options = {});
  /// The sizes are exchanged before this returns; `output` is filled when wait() returns and must
  /// live until then.
  [[nodiscard]] Work all_gather_async(std::vector<at::Tensor>& output, const at::Tensor& tensor,
                                      const CallOptions& options = {});

  /// Collective. Returns once every rank has called it.
  void barrier(const CallOptions& options = {});
  [[nodiscard]] Work barrier_async(const CallOptions& options = {});

  /// Collective. Byte strings of any length.
  std::string broadcast_bytes(std::string bytes, int root = 0, const CallOptions& options = {});
  std::vector<std::string> all_gather_bytes(std::string_view bytes, const CallOptions& options = {});
  [[nodiscard]] Work all_gather_bytes_async(std::vector<std::string>& output, std::string_view bytes,
                                            const CallOptions& options = {});

  /// Memory that suits this backend's reductions, zeroed: uint8 [bytes] on device().
  at::Tensor allocate(std::int64_t bytes);

  /// Tells all ranks that this one has failed: their waits end with this rank and `text`, and the
  /// group is broken everywhere. Safe from any thread, returns at once, never throws.
  void fail(std::string_view text) noexcept;
  /// Throws the group's error if it is broken.
  void check() const;
  /// The training step that later calls belong to, for errors and logs.
  void mark_step(std::int64_t step) noexcept;

  /// Leaves in order: lets pending collectives end, says goodbye, and waits a few seconds at most
  /// for the others. Afterwards a lost peer is no error and a collective is a std::logic_error.
  void shutdown() noexcept;

  int rank() const noexcept;
  int size() const noexcept;
  Origin origin() const noexcept;
  at::Device device() const noexcept;
  const Environment& environment() const noexcept;
  std::string_view backend() const noexcept;  ///< "gloo"; "none" in a world of one
  std::chrono::milliseconds timeout() const noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Collective. Sets the device, meets the other ranks and connects to them; alone it opens no socket.
/// Logs the environment summary on rank 0. Errors: ConfigError, TimeoutError with the missing ranks.
std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options = {});

}  // namespace ddp
