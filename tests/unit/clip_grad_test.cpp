#include "ddp/clip_grad.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace ddp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor with_gradient(const at::Tensor& gradient) {
  auto parameter = torch::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

std::vector<at::Tensor> of_sizes(const std::vector<std::int64_t>& sizes, torch::Dtype dtype = torch::kDouble) {
  torch::manual_seed(3);
  std::vector<at::Tensor> parameters;
  for (const auto size : sizes) parameters.push_back(with_gradient(torch::randn({size}, torch::kDouble).to(dtype)));
  return parameters;
}

TEST(ClipGradNorm, IsTheOneOfLibTorch) {
  for (const double norm_type : {1.0, 2.0, 3.5, kInfinity})
    for (const double max_norm : {0.0, 0.5, 1e6}) {
      const auto ours = of_sizes({3, 1, 40}), theirs = of_sizes({3, 1, 40});
      const auto norm = clip_grad_norm_(ours, max_norm, norm_type);
      EXPECT_NEAR(norm.item<double>(), torch::nn::utils::clip_grad_norm_(theirs, max_norm, norm_type), 1e-12);
      EXPECT_EQ(norm.scalar_type(), at::kDouble);
      for (std::size_t i = 0; i < ours.size(); ++i)
        EXPECT_TRUE(torch::allclose(ours[i].grad(), theirs[i].grad(), 1e-13, 1e-15)) << norm_type << ' ' << max_norm;
    }
}

TEST(ClipGradNorm, DoesNotTouchWhatIsBelowTheLimit) {
  const auto parameters = of_sizes({5});
  const auto version = parameters[0].grad()._version();
  clip_grad_norm_(parameters, 1e6);
  EXPECT_EQ(parameters[0].grad()._version(), version);
}

TEST(ClipGradNorm, CountsTiedParametersAndSharedGradientsOnce) {
  const auto parameters = of_sizes({4, 4});
  auto shared = torch::zeros({4}, torch::kDouble).requires_grad_();
  shared.mutable_grad() = parameters[1].grad().view({4});
  const auto plain = of_sizes({4, 4});
  const auto expected = clip_grad_norm_(plain, 0.1).item<double>();
  EXPECT_EQ(clip_grad_norm_({parameters[0], parameters[1], parameters[0], shared}, 0.1).item<double>(), expected);
  EXPECT_TRUE(torch::equal(shared.grad(), plain[1].grad()));
  EXPECT_TRUE(torch::equal(parameters[0].grad(), plain[0].grad()));
}

TEST(ClipGradNorm, LeavesOutWhatHasNoGradient) {
  EXPECT_EQ(clip_grad_norm_({torch::zeros({3}).requires_grad_(), at::Tensor()}, 1).item<double>(), 0);
  EXPECT_EQ(clip_grad_norm_({with_gradient(torch::zeros({0}))}, 1).item<double>(), 0);
}

TEST(ClipGradNorm, SumsHalfTypesInFloat) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    const auto parameters = std::vector{with_gradient(torch::full({10000}, 256, dtype))};
    const auto norm = clip_grad_norm_(parameters, 100);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    EXPECT_FLOAT_EQ(norm.item<float>(), 25600);
    EXPECT_EQ(parameters[0].grad()[0].item<float>(), 1);
  }
}

TEST(ClipGradNorm, TakesSparseAndComplexGradientsAndMixedTypes) {
  // Row 1 stands twice: its gradient is the sum, (2, 0), beside row 3's (0, 1).
  const auto sparse = torch::sparse_coo_tensor(torch::tensor({{1, 3, 1}}, torch::kLong),
                                               torch::tensor({{1.F, 0.F}, {0.F, 1.F}, {1.F, 0.F}}), {4, 2});
  auto embedding = torch::zeros({4, 2}).requires_grad_();
  embedding.mutable_grad() = sparse;
  const auto imaginary = with_gradient(torch::complex(torch::zeros({1}), torch::full({1}, 2.0F)));
  const auto half = with_gradient(torch::full({4}, 2, torch::kHalf));
  const auto norm = clip_grad_norm_({embedding, imaginary, half}, 2.5);  // of 4 + 1 + 4 + 16
  EXPECT_FLOAT_EQ(norm.item<float>(), 5);
  EXPECT_FLOAT_EQ(embedding.grad().to_dense()[1][0].item<float>(), 1);
  EXPECT_FLOAT_EQ(torch::abs(imaginary.grad()).item<float>(), 1);
  EXPECT_EQ(half.grad()[0].item<float>(), 1);
}

TEST(ClipGradNorm, ChangesNothingWhereItRefuses) {
  const auto parameters = std::vector{with_gradient(torch::tensor({3.0, kInfinity}))};
  EXPECT_THROW(clip_grad_norm_(parameters, 1, 2, true), std::runtime_error);
  EXPECT_EQ(parameters[0].grad()[0].item<double>(), 3);
  EXPECT_THROW(clip_grad_norm_(parameters, -1), std::invalid_argument);
  EXPECT_THROW(clip_grad_norm_(parameters, std::nan("")), std::invalid_argument);
  EXPECT_THROW(clip_grad_norm_(parameters, 1, -2), std::invalid_argument);
}

TEST(AllFinite, SeesInfinitiesAndNanAnywhere) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kComplexFloat})
    for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
      auto values = torch::ones({1000}, dtype);
      EXPECT_TRUE(all_finite({values, at::Tensor(), torch::zeros({0})}));
      values[999] = bad;
      EXPECT_FALSE(all_finite({torch::ones({3}), values})) << dtype << ' ' << bad;
    }
}

TEST(AllFinite, IsNotMisledByASumThatOverflows) {
  EXPECT_TRUE(all_finite({torch::full({8}, std::numeric_limits<float>::max())}));
  EXPECT_TRUE(all_finite({torch::full({4096}, 65504, torch::kHalf)}));
}

TEST(AllFinite, LooksAtTheValuesOfSparseTensorsAndTakesIntegers) {
  const auto sparse = [](float value) {
    return torch::sparse_coo_tensor(torch::tensor({{1}}, torch::kLong), torch::tensor({value}), {4});
  };
  EXPECT_TRUE(all_finite({sparse(1), torch::ones({3}, torch::kLong)}));
  EXPECT_FALSE(all_finite({sparse(std::nanf(""))}));
}

}  // namespace
}  // namespace ddp
