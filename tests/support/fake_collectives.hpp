#pragma once
/// fake_collectives.hpp: collectives on the fake accelerator, on a stream of their own as NCCL's are.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/fake_streams.hpp"

namespace ddp::testing {

/// A call waits on the group's stream for what the caller's stream had been given, and moves its bytes over another
/// backend of the CPU as late as the stream allows. It keeps its tensors until then.
class FakeCollectives final : public c10d::Backend {
 public:
  FakeCollectives(c10::intrusive_ptr<c10d::Backend> carrier, at::Device device);
  ~FakeCollectives() override;

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  const std::string getBackendName() const override { return "fake"; }
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;

  /// The calls between them are one: its work is the last one's, for all are on one stream.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  Work endCoalescing() override;

  void abort() override;
  void shutdown() override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  struct Group;

 private:
  struct Asked {
    std::string what;
    c10d::OpType type;
    Tensors tensors;  ///< of which the caller's stream gives or takes something
    std::size_t bytes;
  };
  Work start(Asked asked, std::function<Work(c10d::Backend&)> launch, std::function<void()> finish = nullptr);

  std::shared_ptr<Group> group_;
  Work latest_;
};

}  // namespace ddp::testing
