#pragma once
/// prefetch.hpp: batches on the device, the next one copied while this one computes.

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "ddp/data_loader.hpp"
#include "ddp/tensor_visitor.hpp"

namespace ddp {

template <class Data, class Target>
struct TensorVisitor<torch::data::Example<Data, Target>> {
  static void visit(auto& example, auto& f) {
    visit_tensors(example.data, f);
    if constexpr (!std::is_void_v<Target>) visit_tensors(example.target, f);
  }
};

/// Copies a batch's tensors to a device: to an accelerator through pinned memory, on a stream of its own.
/// Threads: one.
class DeviceCopier {
 public:
  /// Errors: c10::Error for a device that LibTorch was not built for.
  explicit DeviceCopier(at::Device device);
  DeviceCopier(DeviceCopier&&) noexcept;
  DeviceCopier& operator=(DeviceCopier&&) noexcept;
  ~DeviceCopier();

  /// Replaces the batch's tensors by those on the device, which have their values once finish() was called.
  template <class Batch>
  void start(Batch& batch) {
    begin_batch();
    auto copy = [this](const at::Tensor& tensor) { return start_one(tensor); };
    replace_tensors(batch, copy);
    end_batch();
  }
  /// What the current stream does from now on waits for the copies, and their memory waits for it.
  void finish();

 private:
  struct Impl;
  void begin_batch();
  at::Tensor start_one(const at::Tensor& tensor);
  void end_batch();

  std::unique_ptr<Impl> impl_;
};

/// What prefetch() returns. With a copier, the batch after the one at hand has been fetched, and its copying started,
/// when the loop is given the one at hand.
/// Errors: as the loader's; they come out of the loop where it would be given the batch that they belong to.
/// Threads: one. Lifetime: holds a reference to the loader; iterators hold a pointer to this.
template <class Loader, class Copier = DeviceCopier>
class Prefetched {
 public:
  using BatchType = typename Loader::BatchType;
  using Iterator = BatchIterator<Prefetched>;

  Prefetched(Loader& loader, std::optional<Copier> copier) : loader_(loader), copier_(std::move(copier)) {}
  Prefetched(const Prefetched&) = delete;
  Prefetched& operator=(const Prefetched&) = delete;

  /// Begins a pass of the loader.
  Iterator begin() {
    current_.reset();
    ahead_ = {};
    loader_.begin_pass();
    fetch_ahead();
    advance();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  friend Iterator;

  struct Ahead {
    std::optional<BatchType> batch;
    std::exception_ptr error;
  };

  std::size_t pass() const noexcept { return loader_.pass(); }

  void fetch_ahead() {
    if (!copier_) return;
    try {
      ahead_.batch = loader_.fetch();
      if (ahead_.batch) copier_->start(*ahead_.batch);
    } catch (...) {
      ahead_ = {.batch = std::nullopt, .error = std::current_exception()};
    }
  }

  std::optional<BatchType> next() {
    if (!copier_) return loader_.fetch();
    auto next = std::exchange(ahead_, {});
    if (next.error) std::rethrow_exception(next.error);
    if (next.batch) copier_->finish();
    return std::move(next.batch);
  }

  void advance() {
    current_.reset();
    current_ = next();
    if (!current_) return loader_.end_pass();
    loader_.received();
    fetch_ahead();
  }

  Loader& loader_;
  std::optional<Copier> copier_;
  std::optional<BatchType> current_;
  Ahead ahead_;
};

/// The loader's batches on `device`: for (auto& batch : ddp::prefetch(*loader, group->device())) { ... }
///
/// On an accelerator the next batch is copied while this one computes, and both are in its memory then. The sampler's
/// position and loader.step() count what the loop has been given, not what is under way. On the CPU batches pass as
/// they are and none is fetched ahead. Else, a dataset that draws random numbers in this thread (without workers)
/// draws those of the next batch before this one computes, so random states that are saved in a pass do not repeat
/// it to the bit.
/// Tensors: of the batch types that TensorVisitor knows, torch::data::Example among them; for a struct of yours
/// specialise it. Best few large ones, as transforms::Stack makes them. What a dataset gives pinned is copied from
/// where it is, so it must not write there again.
template <class Dataset>
Prefetched<DataLoader<Dataset>> prefetch(DataLoader<Dataset>& loader, at::Device device) {
  return {loader, device.is_cpu() ? std::optional<DeviceCopier>() : DeviceCopier(device)};
}

}  // namespace ddp
