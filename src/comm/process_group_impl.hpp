#pragma once
/// process_group_impl.hpp: what a ProcessGroup is made of, and how a call goes through it:
/// check the arguments -> enter (number, record) -> launch on the backend -> Work.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/session.hpp"
#include "comm/wire.hpp"
#include "comm/work_state.hpp"
#include "ddp/process_group.hpp"

namespace ddp {

struct ProcessGroup::Impl {
  using Pending = c10::intrusive_ptr<c10d::Work>;

  Environment environment;
  std::chrono::milliseconds timeout;
  std::string backend_name;
  at::Device device = at::kCPU;
  std::shared_ptr<comm::Session> session;
  c10::intrusive_ptr<c10d::Backend> backend;  ///< null in a world of one
  int exceptions_at_birth = 0;

  std::mutex order;  ///< held while a call enters the backend, so that calls leave one after the other
  std::atomic<bool> closed{false};

  int size() const { return environment.world_size; }
  bool is_alone() const { return !backend; }

  /// Numbers a call and has `launch` start it; without `launch` there is nothing to communicate.
  Work start(const char* operation, const std::string& amount, const CallOptions& options, comm::Wire wire,
             const std::function<Pending(std::vector<at::Tensor>&)>& launch);
  /// Under `order`: numbers a call. Throws when the group is closed or broken, or a rank has left.
  comm::Call enter(const char* operation, const std::string& amount, const CallOptions& options);
  /// Under `order`: has the backend start the last transfer of `call`.
  std::shared_ptr<Work::State> launch(const comm::Call& call, const CallOptions& options,
                                      const std::function<Pending()>& begin, bool is_last = true);
  /// Under `order`: a transfer whose result the call itself needs before it can go on.
  void transfer_first(const comm::Call& call, const CallOptions& options, const std::function<Pending()>& begin);

  /// One round of equal-sized tensors from every rank, in rank order.
  Pending gather(std::vector<at::Tensor>& outputs, at::Tensor input);
  Work all_gather(std::vector<at::Tensor>& output, const at::Tensor& tensor, const CallOptions& options);
  Work all_gather_bytes(std::vector<std::string>& output, std::string_view bytes, const CallOptions& options);
  std::string broadcast_bytes(std::string bytes, int root, const CallOptions& options);

  /// Leaves; `farewell` is how long rank 0 stays for the others.
  void close(std::chrono::milliseconds drain, std::chrono::milliseconds farewell) noexcept;

 private:
  /// A call without a transfer.
  Work done(const comm::Call& call);
  void release_backend() noexcept;
};

}  // namespace ddp
