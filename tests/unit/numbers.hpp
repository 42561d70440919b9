#pragma once
/// numbers.hpp: data for tests of loaders.

#include <torch/data/datasets/base.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/data_loader.hpp"

namespace ddp::testing {

using Indices = std::vector<std::size_t>;

struct BadSample : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Sample i is i; some samples may throw.
struct Numbers : torch::data::datasets::Dataset<Numbers, std::size_t> {
  explicit Numbers(std::size_t size) : size_(size) {}
  std::size_t get(std::size_t index) override {
    if (index == *bad_sample) throw BadSample("sample " + std::to_string(index));
    return index;
  }
  std::optional<std::size_t> size() const override { return size_; }

  std::size_t size_;
  std::shared_ptr<std::atomic<std::size_t>> bad_sample = std::make_shared<std::atomic<std::size_t>>(~std::size_t{0});
};

inline DistributedSampler sampler_of(std::size_t size) {
  return DistributedSampler(size, {.num_replicas = 2, .rank = 1, .seed = 3});
}

/// What the batches of a pass hold.
template <class Range>
Indices all_of(Range&& batches) {
  Indices all;
  for (auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

inline Indices tail(const Indices& indices, std::ptrdiff_t from) { return {indices.begin() + from, indices.end()}; }

}  // namespace ddp::testing
