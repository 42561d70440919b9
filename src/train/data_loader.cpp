#include "ddp/data_loader.hpp"

#include <algorithm>
#include <string>

#include "base/cores.hpp"
#include "base/phase.hpp"
#include "ddp/log.hpp"

namespace ddp {
namespace {

// A worker that waits for a disk leaves its core to others, so some more than cores do no harm.
constexpr double kWorkersPerCore = 1.5;

void warn_of_too_many(std::size_t workers, int ranks) {
  const auto all = static_cast<double>(workers) * ranks, cores = allowed_cores();
  if (workers == 0 || all <= kWorkersPerCore * cores) return;
  log::warn("data loader: {} workers for each of {} ranks on this host's {:g} cores take them from the training",
            workers, ranks, cores);
}

}  // namespace

BatchFeed::BatchFeed(DistributedSampler sampler, const torch::data::FullDataLoaderOptions& options,
                     std::optional<std::size_t> dataset_size)
    : sampler_(std::move(sampler)), batch_size_(options.batch_size), drop_last_(options.drop_last) {
  if (dataset_size && *dataset_size != sampler_.dataset_size()) {
    throw std::invalid_argument("data loader: the dataset has " + std::to_string(*dataset_size) +
                                " samples, but its sampler was made for " + std::to_string(sampler_.dataset_size()));
  }
  if (batch_size_ == 0) throw std::invalid_argument("data loader: the batch size is 0");
  if (options.workers > 0 && options.max_jobs == 0) {
    throw std::invalid_argument("data loader: max_jobs is 0, so that the workers would never get a batch to fetch");
  }
  warn_of_too_many(options.workers, sampler_.local_replicas());
}

void BatchFeed::begin() {
  pass_ = sampler_.begin_pass();
  handed_out_ = 0;
  received_ = 0;
  step_ = batches() - batches_of(pass_.size());
  mark_data_used_up(false);
}

std::optional<std::vector<std::size_t>> BatchFeed::next() {
  const auto count = std::min(batch_size_, pass_.size() - handed_out_);
  if (count == 0 || (drop_last_ && count < batch_size_)) return std::nullopt;
  const auto first = pass_.begin() + static_cast<std::ptrdiff_t>(handed_out_);
  handed_out_ += count;
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

void BatchFeed::received() {
  const auto count = std::min(batch_size_, pass_.size() - received_);
  received_ += count;
  ++step_;
  sampler_.mark_received(count);
  mark_data_used_up(false);
}

void BatchFeed::end() {
  sampler_.end_pass();
  mark_data_used_up(true);
}

std::size_t BatchFeed::batches_of(std::size_t samples) const noexcept {
  return samples / batch_size_ + (!drop_last_ && samples % batch_size_ != 0 ? 1 : 0);
}

std::size_t BatchFeed::batches() const noexcept { return batches_of(sampler_.size()); }

}  // namespace ddp
