#pragma once
/// points.hpp: a dataset of random points [8] with targets [4] that a linear map gives, in float32.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>

namespace ddp::testing {

class Points : public torch::data::datasets::Dataset<Points> {
 public:
  explicit Points(std::int64_t size) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
    inputs_ = torch::randn({size, 8}, generator);
    targets_ = torch::matmul(inputs_, torch::randn({8, 4}, generator)) / 3;
  }
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {inputs_[i], targets_[i]};
  }
  torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(inputs_.size(0)); }

 private:
  torch::Tensor inputs_, targets_;
};

inline auto points(std::int64_t size) { return Points(size).map(torch::data::transforms::Stack<>()); }

}  // namespace ddp::testing
