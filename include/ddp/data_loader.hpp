#pragma once
/// data_loader.hpp: LibTorch's data loader over a DistributedSampler, which knows what the loop has received,
/// and whose loop may be left early.

#include <torch/data/dataloader/base.h>

#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ddp/distributed_sampler.hpp"
#include "ddp/phase.hpp"

namespace ddp {

/// One pass of a sampler in batches, and the count of those that came back; DataLoader's bookkeeping.
/// Threads: one.
class BatchFeed {
 public:
  /// Errors: std::invalid_argument for a dataset of another size than the sampler's and for options that
  /// could never give a batch.
  BatchFeed(DistributedSampler sampler, const torch::data::FullDataLoaderOptions& options,
            std::optional<std::size_t> dataset_size);

  void begin();
  /// Indices of the next batch to be fetched; nullopt when all are on their way.
  std::optional<std::vector<std::size_t>> next();
  /// A batch has reached the loop; all have.
  void received();
  void end();

  std::size_t step() const noexcept { return step_; }
  std::size_t batches() const noexcept;

 private:
  std::size_t batches_of(std::size_t samples) const noexcept;

  DistributedSampler sampler_;
  std::size_t batch_size_;
  bool drop_last_;
  std::vector<std::size_t> pass_;
  std::size_t handed_out_ = 0;  ///< of pass_
  std::size_t received_ = 0;    ///< of pass_
  std::size_t step_ = 0;
};

/// Input iterator over the batches of a pass; equal to std::default_sentinel at the end of it, and from when
/// another pass has begun.
/// Lifetime: holds a pointer to the range.
template <class Range>
class BatchIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = typename Range::BatchType;
  using difference_type = std::ptrdiff_t;

  explicit BatchIterator(Range& range) : range_(&range), pass_(range.pass()) {}

  value_type& operator*() const { return *range_->current_; }
  value_type* operator->() const { return &*range_->current_; }

  /// Errors: std::logic_error at the end.
  BatchIterator& operator++() {
    if (at_end()) throw std::logic_error("data loader: an iterator was moved beyond the end of its pass");
    range_->advance();
    return *this;
  }
  void operator++(int) { ++*this; }

  friend bool operator==(const BatchIterator& iterator, std::default_sentinel_t) { return iterator.at_end(); }

 private:
  bool at_end() const { return pass_ != range_->pass() || !range_->current_; }

  Range* range_;
  std::size_t pass_;
};

/// What make_data_loader() returns: for (auto& batch : *loader) { ... }
///
/// The loop may be left at any point, by break, return or an exception, and the next one begins a new pass: what
/// the workers had under way is discarded then. An iterator of the earlier pass is at its end from then on.
/// Errors: what the dataset throws comes out of the loop with its type, with workers too; the pass is over then.
/// A warning on rank 0 where the workers of this host's ranks are more than 1.5 for each core that they may use.
/// With options.timeout(), c10::Error for a batch that takes workers longer.
/// Threads: one; the workers are its own, each with its own copy of the dataset.
/// Lifetime: iterators hold a pointer to the loader. The destructor waits for batches that are being fetched.
template <class Dataset>
class DataLoader : private torch::data::DataLoaderBase<Dataset, typename Dataset::BatchType, std::vector<std::size_t>> {
  using Base = torch::data::DataLoaderBase<Dataset, typename Dataset::BatchType, std::vector<std::size_t>>;
  static_assert(!Dataset::is_stateful, "a DistributedSampler needs a dataset that is read by index");

 public:
  using BatchType = typename Dataset::BatchType;
  using Iterator = BatchIterator<DataLoader>;

  DataLoader(Dataset dataset, DistributedSampler sampler, torch::data::DataLoaderOptions options)
      : Base(options), feed_(std::move(sampler), this->options_, dataset.size()) {
    for (std::size_t worker = 0; worker < this->options_.workers; ++worker) {
      this->workers_.emplace_back([this, dataset]() mutable { this->worker_thread(dataset); });
    }
    if (this->options_.workers == 0) this->main_thread_dataset_ = std::make_unique<Dataset>(std::move(dataset));
  }

  /// Begins a pass and fetches its first batch.
  Iterator begin() {
    begin_pass();
    advance();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Batches that the loop has received in this epoch, the one at hand included; after a resume those before it
  /// count too, unless they were those of another number of ranks. Stays as it is after the loop.
  std::size_t step() const noexcept { return feed_.step(); }
  /// Batches in an epoch, or in what another number of ranks has left of it.
  std::size_t batches() const noexcept { return feed_.batches(); }

  /// The loop in steps, for a range over this loader that fetches ahead of its own loop (prefetch.hpp): begin_pass();
  /// fetch() until it gives none; received() for each batch when the loop is given it; end_pass() after the last one.
  void begin_pass() {
    ++pass_;
    current_.reset();
    reset();
  }
  std::optional<BatchType> fetch() {
    const Phase phase("loading data");
    try {
      return Base::next();
    } catch (const torch::data::WorkerException& error) {
      std::rethrow_exception(error.original_exception);
    }
  }
  void received() { feed_.received(); }
  void end_pass() { feed_.end(); }
  /// Number of the pass, by which iterators of earlier ones are known.
  std::size_t pass() const noexcept { return pass_; }

 private:
  friend Iterator;

  std::optional<std::vector<std::size_t>> get_batch_request() override { return feed_.next(); }

  void reset() override {
    this->shuttle_.drain();
    feed_.begin();
    Base::reset();
  }

  void advance() {
    current_.reset();
    current_ = fetch();
    current_ ? received() : end_pass();
  }

  BatchFeed feed_;
  std::optional<BatchType> current_;
  std::size_t pass_ = 0;
};

/// A loader of `dataset` in the order of `sampler`, whose later set_epoch() reaches it. Keep
/// options.enforce_ordering (the default) where a run is to be resumed inside an epoch: only then are the
/// batches received the first ones of the epoch. Errors: std::invalid_argument if dataset and sampler differ in
/// size, or for a batch size or max_jobs of 0.
template <class Dataset>
std::unique_ptr<DataLoader<Dataset>> make_data_loader(Dataset dataset, const DistributedSampler& sampler,
                                                      torch::data::DataLoaderOptions options = {}) {
  return std::make_unique<DataLoader<Dataset>>(std::move(dataset), sampler, std::move(options));
}

}  // namespace ddp
