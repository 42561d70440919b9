#include "reduce/bucket.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

namespace ddp {
namespace {

at::Tensor zeroed(std::int64_t bytes) { return torch::zeros({bytes}, torch::kByte); }
Scale scale(double factor) { return Scale(factor); }

TEST(Bucket, LaysSlotsSideBySideAndExtraElementsBehind) {
  Bucket bucket({torch::ones({2, 3}), torch::ones({4})}, zeroed, 5);
  bucket.put(0, torch::full({2, 3}, 2.0), scale(0.5));
  bucket.put(1, torch::full({4}, 6.0), scale(0.5));
  bucket.extra().fill_(9);
  EXPECT_TRUE(torch::equal(bucket.flat(),
                           torch::tensor({1., 1., 1., 1., 1., 1., 3., 3., 3., 3., 9., 9., 9., 9., 9.}, torch::kFloat)));
  EXPECT_EQ(bucket.bytes(), 15 * 4);
}

TEST(Bucket, ScalesAGradientThatIsItsSlotInPlace) {
  Bucket bucket({torch::ones({2})}, zeroed);
  auto gradient = bucket.view(0);
  gradient.fill_(8);
  bucket.put(0, gradient, scale(0.25));
  EXPECT_TRUE(torch::equal(bucket.flat(), torch::full({2}, 2.0)));
}

TEST(Bucket, HasSlotsWithoutElements) {
  Bucket bucket({torch::ones({0, 16}), torch::ones({1})}, zeroed);
  bucket.put(0, torch::ones({0, 16}), scale(1));
  EXPECT_EQ(bucket.view(0).sizes(), (std::vector<std::int64_t>{0, 16}));
  EXPECT_EQ(bucket.bytes(), 4);
}

TEST(Bucket, AddsASecondGradient) {
  Bucket bucket({torch::ones({2}), torch::ones({2})}, zeroed);
  bucket.put(1, torch::full({2}, 8.0), scale(0.5));
  bucket.add(1, torch::full({2}, 2.0), scale(0.5));
  EXPECT_TRUE(torch::equal(bucket.flat(), torch::tensor({0., 0., 5., 5.}, torch::kFloat)));
  bucket.clear(1);
  EXPECT_TRUE(torch::equal(bucket.flat(), torch::zeros({4})));
}

TEST(Bucket, MakesSparseGradientsDense) {
  Bucket bucket({torch::ones({3, 2})}, zeroed);
  bucket.put(0, torch::ones({3, 2}), scale(7));
  const auto rows = torch::sparse_coo_tensor(torch::tensor({{1, 1}}), torch::full({2, 2}, 4.0), {3, 2});
  bucket.put(0, rows, scale(0.5));
  EXPECT_TRUE(torch::equal(bucket.view(0), torch::tensor({{0., 0.}, {4., 4.}, {0., 0.}}, torch::kFloat)));
}

// Small gradients are multiplied by a loop of our own.
TEST(Bucket, GivesTheOperatorsBitsForEverySizeDtypeAndLayout) {
  torch::manual_seed(1);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16})
    for (const std::int64_t rows : {1, 7, 64, 300}) {
      const auto parameter = torch::empty({rows, 33}, dtype);
      Bucket bucket({parameter, parameter.t()}, zeroed);
      const auto gradient = torch::randn({rows, 33}).to(dtype);
      bucket.put(0, gradient, scale(1.0 / 3));
      bucket.put(1, gradient.t(), scale(1.0 / 3));
      EXPECT_TRUE(torch::equal(bucket.view(0), gradient * (1.0 / 3))) << dtype << rows;
      EXPECT_TRUE(torch::equal(bucket.view(1), gradient.t() * (1.0 / 3))) << dtype << rows;
    }
}

TEST(Bucket, KeepsTheStridesOfDenseParametersAndMakesOthersContiguous) {
  const auto image = torch::ones({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto transposed = torch::ones({4, 6}).t();
  const auto expanded = torch::ones({1, 3}).expand({2, 3});
  Bucket bucket({image, transposed, expanded}, zeroed);
  EXPECT_EQ(bucket.view(0).strides(), image.strides());
  EXPECT_EQ(bucket.view(1).strides(), transposed.strides());
  EXPECT_EQ(bucket.view(2).strides(), (std::vector<std::int64_t>{3, 1}));
}

TEST(Bucket, HoldsEveryFloatingAndComplexDtype) {
  for (const auto dtype :
       {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat, torch::kComplexDouble}) {
    Bucket bucket({torch::ones({3}, dtype)}, zeroed);
    bucket.put(0, torch::full({3}, 4, dtype), scale(0.5));
    EXPECT_TRUE(torch::equal(bucket.view(0), torch::full({3}, 2, dtype))) << dtype;
    EXPECT_EQ(bucket.view(0).scalar_type(), dtype);
  }
}

TEST(Bucket, KeepsItsSlotWhateverTheHolderOfTheViewDoesToIt) {
  Bucket bucket({torch::ones({2})}, zeroed);
  const std::vector<std::function<void(at::Tensor)>> ways{
      [](at::Tensor view) { view.set_data(torch::zeros({2})); }, [](at::Tensor view) { view.resize_({0}); },
      [](at::Tensor view) { view.unsqueeze_(0); }, [](at::Tensor view) { view.requires_grad_(); }};
  for (std::size_t way = 0; way < ways.size(); ++way) {
    ways[way](bucket.view(0));
    bucket.put(0, torch::full({2}, 4.0 + static_cast<double>(way)), scale(1));
    EXPECT_TRUE(torch::equal(bucket.view(0), bucket.flat())) << way;
    EXPECT_TRUE(same_memory(bucket.view(0), bucket.flat())) << way;
    EXPECT_FALSE(bucket.view(0).requires_grad()) << way;
  }
}

TEST(Bucket, GivesTheSameViewAgainWhileItIsWhole) {
  Bucket bucket({torch::ones({2})}, zeroed);
  const auto view = bucket.view(0);
  EXPECT_TRUE(view.is_same(bucket.view(0)));
  EXPECT_TRUE(bucket.owns(view));
  EXPECT_FALSE(bucket.owns(torch::ones({2})));
}

TEST(Bucket, GivesViewsThatCanBeDetachedInPlace) {
  Bucket bucket({torch::ones({2})}, zeroed);
  auto gradient = bucket.view(0);
  EXPECT_FALSE(gradient.is_view());
  EXPECT_NO_THROW(gradient.detach_());
}

TEST(Bucket, AcceptsGradientsInOtherLayouts) {
  Bucket bucket({torch::ones({4, 6})}, zeroed);
  const auto gradient = torch::arange(24, torch::kFloat).view({6, 4}).t();
  bucket.put(0, gradient, scale(1));
  EXPECT_TRUE(torch::equal(bucket.view(0), gradient));
}

}  // namespace
}  // namespace ddp
