#pragma once
/// process_group.hpp: the ranks of a job and the collectives between them.
///
/// A rank that throws, dies or leaves ends the others' waits within seconds, with its number and
/// its text, whatever the timeout. See docs/errors.md.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
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

/// What is NCCL's own.
struct NcclOptions {
  /// Its kernels go before others that wait on the device, so that buckets are averaged while backward still computes.
  bool high_priority_stream = true;
  /// Memory of allocate(), and so of the buckets, is registered with NCCL where the GPUs can make use of it. Off as
  /// long as nobody has measured that it helps.
  bool register_memory = false;
};

/// How a group is made. Every field has a default.
struct ProcessGroupOptions {
  /// "auto": the variable DDP_BACKEND where it is set; else NCCL where this build has it (DDP_WITH_NCCL) and the
  /// process sees a GPU; else shared memory where all ranks are on one host and can have it, else Gloo. "shm", "gloo",
  /// "nccl": that one. Over NCCL, tensors in the host's memory travel as they do on the CPU. Errors: ConfigError, on
  /// every rank, where a backend that was named cannot be had.
  std::string backend = "auto";
  /// The device that the rank works on. Unset: over NCCL cuda:<LOCAL_RANK>, or the only one that the process sees; else
  /// the CPU. With "shm" or "gloo", tensors of another device than the CPU go through the host's memory: slower, but
  /// several ranks may share a device. Errors: ConfigError where there is no such device, and, over NCCL, on every rank
  /// where two have the same one.
  std::optional<at::Device> device = std::nullopt;
  NcclOptions nccl = {};
  /// Limit of each collective and of the start-up. Unset: DDP_TIMEOUT (seconds), else 30 minutes.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// A call that lasts as long is warned of, by one rank for all, with what every rank does; again whenever the time
  /// has doubled. Zero: never. Unset: DDP_WARN_AFTER (seconds), else 60 s.
  std::optional<std::chrono::milliseconds> warn_after = std::nullopt;
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

/// Options of a group of some of another group's ranks.
struct SubGroupOptions {
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;  ///< unset: the larger group's
};

/// How many rows of all_to_all's tensors belong to each rank. Empty: as many for each.
struct Splits {
  std::vector<std::int64_t> input = {};
  std::vector<std::int64_t> output = {};
};

namespace comm {
struct PlannedCalls;
}

/// A group of ranks over one backend. Every collective is numbered and recorded.
///
/// In each call the ranks compare what they have called, before any result is written: where operation, dtype, sizes
/// or root differ, all throw CallMismatchError.
///
/// Threads: calls from several threads are safe, but all ranks must make them in the same order.
/// Tensors: on device() or in the host's memory, alike on all ranks; any strides, no elements included; results are
/// written in place.
/// Devices: a call on a device's tensors waits for the current stream, and wait() has the stream that is current then
/// wait for the result. The host does not wait for the device, but in wait() for the other hosts to have made the call,
/// and over "gloo" and "shm" for the result. A failure that shows on the device alone breaks the group, and what the
/// device waits for is aborted. Messages, and byte strings, always go through the host's memory.
/// Errors: see Work::wait(); std::logic_error for misuse that one rank can see, before it sends. A broken group throws
/// the same error again at every later call. Lifetime: shared. The destructor says goodbye without waiting; shutdown()
/// waits a little.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  struct Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// Collective. Reduces element by element over the ranks, in place on every rank. Half types are
  /// summed in float and rounded once, but over NCCL, which sums them as they are; complex knows sum, avg; bool and
  /// integers know no avg.
  void all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
  [[nodiscard]] Work all_reduce_async(at::Tensor& tensor, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

  /// Collective. The same with the result on rank `root` alone; the other ranks' tensors stay as they are.
  void reduce(at::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
  [[nodiscard]] Work reduce_async(at::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum,
                                  const CallOptions& options = {});

  /// Collective. The same, and rank r gets the r-th part: input [size() * n, ...], output [n, ...].
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {});
  [[nodiscard]] Work reduce_scatter_async(at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::sum,
                                          const CallOptions& options = {});

  /// Collective. Copies rank `root`'s tensor to all, byte by byte: any dtype, as in all that follow.
  void broadcast(at::Tensor& tensor, int root = 0, const CallOptions& options = {});
  [[nodiscard]] Work broadcast_async(at::Tensor& tensor, int root = 0, const CallOptions& options = {});

  /// Collective. Every rank's tensor, in rank order. Dtype and all dimensions but the first must
  /// agree; the first may differ, 0 included. At most 14 dimensions.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor, const CallOptions& options = {});
  /// `output` is filled when wait() returns and must live until then.
  [[nodiscard]] Work all_gather_async(std::vector<at::Tensor>& output, const at::Tensor& tensor,
                                      const CallOptions& options = {});

  /// Collective. The same on rank `root` alone; empty elsewhere.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root = 0, const CallOptions& options = {});
  [[nodiscard]] Work gather_async(std::vector<at::Tensor>& output, const at::Tensor& tensor, int root = 0,
                                  const CallOptions& options = {});

  /// Collective. Rank r's output becomes rank `root`'s input[r]; `input` is read on `root` alone.
  void scatter(at::Tensor& output, const std::vector<at::Tensor>& input, int root = 0, const CallOptions& options = {});
  [[nodiscard]] Work scatter_async(at::Tensor& output, const std::vector<at::Tensor>& input, int root = 0,
                                   const CallOptions& options = {});

  /// Collective. The r-th part of the input's rows goes to rank r, and the r-th part of the output's
  /// rows comes from rank r.
  void all_to_all(at::Tensor& output, const at::Tensor& input, const Splits& splits = {},
                  const CallOptions& options = {});
  [[nodiscard]] Work all_to_all_async(at::Tensor& output, const at::Tensor& input, const Splits& splits = {},
                                      const CallOptions& options = {});

  /// A message to one rank, which calls recv() with a tensor of the same dtype and sizes. Messages
  /// between two ranks arrive in order; they have numbers of their own. Returns once it is under way
  /// and the other rank has called recv(), so two ranks that both send first wait for ever: use
  /// send_async() there. Errors: CallMismatchError on both, else as for collectives.
  void send(const at::Tensor& tensor, int to, const CallOptions& options = {});
  void recv(at::Tensor& tensor, int from, const CallOptions& options = {});
  [[nodiscard]] Work send_async(const at::Tensor& tensor, int to, const CallOptions& options = {});
  [[nodiscard]] Work recv_async(at::Tensor& tensor, int from, const CallOptions& options = {});

  /// Collective. Returns once every rank has called it; what they have queued on devices may still run.
  void barrier(const CallOptions& options = {});
  [[nodiscard]] Work barrier_async(const CallOptions& options = {});
  /// Collective. The same over the store, some milliseconds slower: a TimeoutError's first line names
  /// every rank that has not come.
  void monitored_barrier(const CallOptions& options = {});

  /// Collective. Rank 0 runs `work`, with which all are done when this returns. The others wait outside of the
  /// backend: instead of the group's timeout that of the options counts, which rank 0 does not end. In `work` a
  /// collective of this group is a std::logic_error. What `work` throws comes out of it on rank 0, and as a
  /// PeerLostError with its text on the others; the group can go on then.
  void rank0_section(const std::function<void()>& work, const CallOptions& options = {});

  /// Collective, but for messages. Byte strings of any length, which may differ between the ranks.
  std::string broadcast_bytes(std::string bytes, int root = 0, const CallOptions& options = {});
  std::vector<std::string> all_gather_bytes(std::string_view bytes, const CallOptions& options = {});
  [[nodiscard]] Work all_gather_bytes_async(std::vector<std::string>& output, std::string_view bytes,
                                            const CallOptions& options = {});
  std::vector<std::string> gather_bytes(std::string_view bytes, int root = 0, const CallOptions& options = {});
  std::string scatter_bytes(const std::vector<std::string>& parts, int root = 0, const CallOptions& options = {});
  void send_bytes(std::string_view bytes, int to, const CallOptions& options = {});
  std::string recv_bytes(int from, const CallOptions& options = {});

  /// Collective over all ranks of this group. A group of some of them, which are its ranks 0, 1, ... in
  /// ascending order; null on the others. It has its own numbers, and it fails on its own or with this
  /// group's fail(). Errors name ranks of the world. Errors: as init_process_group().
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks, const SubGroupOptions& options = {});

  /// Memory that suits this backend's reductions, zeroed: uint8 [bytes] on device(). In shared memory, reductions of
  /// tensors in it copy nothing; where no more of it is to be had, it is ordinary memory, and one line says so. Over
  /// NCCL see NcclOptions::register_memory.
  at::Tensor allocate(std::int64_t bytes);

  /// Tells all ranks that this one has failed: their waits end with this rank and `text`, and the
  /// group is broken everywhere. Safe from any thread, returns at once, never throws.
  void fail(std::string_view text) noexcept;
  /// Throws the group's error if it is broken.
  void check() const;
  /// The training step that later calls of this group belong to, for errors and logs; ddp::step() wins.
  void mark_step(std::int64_t step) noexcept;

  /// Leaves in order: lets pending collectives end, says goodbye, and waits a few seconds at most
  /// for the others. Afterwards a lost peer is no error and a collective is a std::logic_error.
  void shutdown() noexcept;

  int rank() const noexcept;  ///< in this group
  int size() const noexcept;
  Origin origin() const noexcept;  ///< this rank in the world, for errors
  at::Device device() const noexcept;
  const Environment& environment() const noexcept;
  std::string_view backend() const noexcept;  ///< "shm", "gloo" or "nccl"; "none" in a world of one
  std::chrono::milliseconds timeout() const noexcept;

 private:
  friend struct comm::PlannedCalls;
  std::unique_ptr<Impl> impl_;
};

/// Collective. Sets the device, meets the other ranks and connects to them; alone it opens no socket.
/// Logs the environment summary on rank 0. Errors: ConfigError, TimeoutError with the missing ranks.
std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options = {});

}  // namespace ddp
