#include "reduce/flat_parameters.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "reduce/grad_hooks.hpp"
#include "reduce/side_by_side.hpp"
#include "support/fake_accelerator.hpp"
#include "support/text.hpp"
#include "unit/log_heard.hpp"

namespace ddp {
namespace {

using testing::contains;
using testing::kFakeDevice;

const char* start_of(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }
bool is_behind(const at::Tensor& tensor, const at::Tensor& next) {
  return start_of(next) == start_of(tensor) + tensor.nbytes();
}

at::Tensor parameter(const at::Tensor& values) { return values.clone().requires_grad_(); }
at::Tensor counted(std::int64_t first, std::int64_t count) {
  return parameter(torch::arange(first, first + count, torch::kFloat));
}

void lay(const std::vector<at::Tensor>& tensors) {
  std::vector<Parameter> parameters;
  for (const auto& tensor : tensors) parameters.push_back({"w" + std::to_string(parameters.size()), tensor});
  FlatParameters().lay(parameters);
}

TEST(FlatParameters, LieInTheOrderAskedForByDtype) {
  const auto a = counted(0, 3), b = parameter(torch::ones({2}, torch::kDouble)), c = counted(3, 4),
             d = parameter(torch::ones({5}, torch::kDouble));
  lay({c, b, a, d});
  EXPECT_TRUE(is_behind(c, a));
  EXPECT_TRUE(is_behind(b, d));
}

TEST(FlatParameters, KeepTheirValuesAndIdentity) {
  const auto a = counted(0, 5), b = counted(5, 4);
  const auto again = a;
  a.mutable_grad() = torch::ones({5});
  {
    const torch::NoGradGuard no_grad;
    a.mul_(2);
  }
  const auto version = a._version();
  const auto gradient = a.grad();
  lay({b, a});
  EXPECT_TRUE(torch::equal(a, 2 * torch::arange(5, torch::kFloat)));
  EXPECT_TRUE(torch::equal(b, torch::arange(5, 9, torch::kFloat)));
  EXPECT_TRUE(again.is_same(a));
  EXPECT_EQ(again.data_ptr(), a.data_ptr());
  EXPECT_EQ(a._version(), version);
  EXPECT_TRUE(a.requires_grad());
  EXPECT_TRUE(a.is_leaf());
  EXPECT_TRUE(a.grad().is_same(gradient));
}

TEST(FlatParameters, KeepStrides) {
  const auto image = parameter(torch::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  const auto turned = torch::rand({3, 4}).t().clone(at::MemoryFormat::Preserve).requires_grad_();
  const auto number = parameter(torch::rand({}));
  const auto before = image.clone();
  const auto strides = turned.strides().vec();
  lay({turned, image, number});
  EXPECT_TRUE(image.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::equal(image, before));
  EXPECT_EQ(turned.strides(), strides);
  EXPECT_TRUE(is_behind(turned, image));
  EXPECT_TRUE(is_behind(image, number));
}

TEST(FlatParameters, KeepTheirHooks) {
  const std::vector<at::Tensor> tensors{counted(1, 3), counted(4, 3)};
  std::vector<std::size_t> arrived;
  const GradHooks hooks(tensors, {[] {}, [&](std::size_t i) { arrived.push_back(i); }, [] {}, [] {}});
  lay(tensors);
  EXPECT_FALSE(hooks.first_unhooked(tensors));
  (tensors[0] * tensors[1]).sum().backward();
  EXPECT_EQ(arrived.size(), 2U);
  EXPECT_TRUE(torch::equal(tensors[0].grad(), tensors[1]));
}

TEST(FlatParameters, KeepAGraphThatWasMadeBefore) {
  torch::nn::Linear first(4, 4), second(4, 4);
  const auto loss = second(first(torch::ones({2, 4}))).pow(2).sum();
  loss.backward({}, true);
  const auto expected = first->weight.grad().clone();
  first->zero_grad();
  lay({first->bias, second->bias, first->weight, second->weight});
  loss.backward();
  EXPECT_TRUE(torch::equal(first->weight.grad(), expected));
}

TEST(FlatParameters, MayBeLaidInAnotherOrder) {
  const auto a = counted(0, 3), b = counted(3, 4);
  lay({a, b});
  lay({b, a});
  EXPECT_TRUE(is_behind(b, a));
  EXPECT_TRUE(torch::equal(a, torch::arange(3, torch::kFloat)));
  EXPECT_TRUE(torch::equal(b, torch::arange(3, 7, torch::kFloat)));
}

TEST(FlatParameters, KeepAStorageOfTheirOwnAndLeaveNothingBehind) {
  const auto a = counted(0, 30);
  const auto big = torch::ones({1000});
  auto part =
      big.narrow(0, 0, 10).detach().requires_grad_();  // of a storage that nobody else needs, once `big` is gone
  const auto old = a.storage().getWeakStorageImpl();
  const_cast<at::Tensor&>(big).reset();
  lay({a, part});
  EXPECT_TRUE(old.expired());
  EXPECT_EQ(part.storage().nbytes(), 40U);
  EXPECT_EQ(a.storage().use_count(), 1U);
}

// Whatever `make` gives beside a plain parameter stays where it is.
void expect_stays(const std::function<std::vector<at::Tensor>()>& make, const std::string& reason) {
  const auto text = testing::heard([&] {
    const auto tensors = make();
    const auto before = tensors[0].const_data_ptr();
    const auto plain = counted(0, 2), other = counted(2, 2);
    const std::vector<Parameter> parameters{{"plain", plain}, {"odd", tensors[0]}, {"other", other}};
    FlatParameters flat;
    flat.lay(parameters);
    flat.lay(parameters);
    if (tensors[0].const_data_ptr() != before) throw std::runtime_error("odd was moved");
    if (!is_behind(plain, other)) throw std::runtime_error("others were not moved");
  });
  EXPECT_TRUE(contains(text, "info rank 0: flatten_parameters: these stay where they are: odd (" + reason + ")\n"))
      << text;
  EXPECT_EQ(testing::lines_of(text).size(), 1U) << text;
}

constexpr const char* kShared = "another tensor shares its memory";
constexpr const char* kForeign = "in memory that LibTorch did not allocate";
constexpr const char* kSpecial = "a tensor of a special kind";

TEST(FlatParameters, StayWithWhatSharesTheirMemory) {
  expect_stays(
      [] {
        const auto w = counted(0, 4);
        return std::vector{w, w.detach()};
      },
      kShared);
  expect_stays(
      [] {
        const auto w = counted(0, 4);
        return std::vector{w, w.view({2, 2})};
      },
      kShared);
  expect_stays(
      [] {
        const auto all = torch::ones({9});
        return std::vector{all.narrow(0, 2, 3).requires_grad_(), all};
      },
      kShared);
  expect_stays([] { return std::vector{torch::ones({9}).narrow(0, 2, 3).requires_grad_()}; },
               kShared);  // a view's base
}

TEST(FlatParameters, StayTogetherWhereTwoAreInOneMemory) {
  const auto text = testing::heard([] {
    const auto all = torch::arange(6, torch::kFloat);
    const std::vector<Parameter> parameters{{"a", all.narrow(0, 0, 4).detach().requires_grad_()},
                                            {"b", all.narrow(0, 2, 4).detach().requires_grad_()}};
    FlatParameters().lay(parameters);
    const torch::NoGradGuard no_grad;
    parameters[0].tensor.fill_(7);
    if (parameters[1].tensor[0].item<float>() != 7) throw std::runtime_error("they were separated");
  });
  EXPECT_TRUE(contains(text, std::string("a (") + kShared + "), b (" + kShared + ")")) << text;
}

TEST(FlatParameters, StayInMemoryThatSomebodyElseHasGiven) {
  std::vector<float> borrowed(4), owned(4);
  expect_stays([&] { return std::vector{torch::from_blob(borrowed.data(), {4}).requires_grad_()}; }, kForeign);
  expect_stays([&] { return std::vector{torch::from_blob(owned.data(), {4}, [](void*) {}).requires_grad_()}; },
               kForeign);
}

TEST(FlatParameters, StayWhereTheyHaveGapsOrAreSpecial) {
  expect_stays([] { return std::vector{torch::empty_strided({3, 2}, {4, 2}).fill_(1).requires_grad_()}; },
               "with gaps or overlaps");
  expect_stays(
      [] { return std::vector{torch::conj(torch::ones({3}, torch::kComplexFloat)).detach().requires_grad_()}; },
      kSpecial);
}

TEST(FlatParameters, StayOnADevice) {
  const auto text = testing::heard([] {
    testing::fake_accelerator().reset();
    const auto tensor = torch::ones({4}, kFakeDevice);
    const auto before = tensor.const_data_ptr();
    lay({tensor, torch::ones({4}, kFakeDevice)});
    if (tensor.const_data_ptr() != before) throw std::runtime_error("it was moved");
  });
  EXPECT_EQ(text, "");
}

TEST(FlatParameters, WithoutElementsStay) {
  const auto empty = parameter(torch::ones({0, 3})), a = counted(0, 2), b = counted(2, 2);
  lay({a, empty, b});
  EXPECT_TRUE(is_behind(a, b));
  EXPECT_EQ(empty.sizes(), (std::vector<std::int64_t>{0, 3}));
}

TEST(FlatParameters, MayHaveBeenLoaded) {
  std::stringstream file;
  torch::nn::Linear saved(3, 2), loaded(3, 2);
  torch::save(saved, file);
  torch::load(loaded, file);
  lay({loaded->bias, loaded->weight});
  EXPECT_TRUE(is_behind(loaded->bias, loaded->weight));
  EXPECT_TRUE(torch::equal(loaded->weight, saved->weight));
}

TEST(FlatParameters, AreTheSameUnderInferenceMode) {
  const auto a = counted(0, 3), b = counted(3, 3);
  {
    const c10::InferenceMode inference;
    lay({a, b});
  }
  EXPECT_TRUE(is_behind(a, b));
  (a * b).sum().backward();
  EXPECT_TRUE(torch::equal(a.grad(), b));
}

TEST(FlatParameters, OfAModuleAreItsLayersToo) {
  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true));
  const auto input = torch::rand({5, 2, 3});
  const auto expected = std::get<0>(lstm(input));
  auto parameters = lstm->parameters();
  lay({parameters.rbegin(), parameters.rend()});
  EXPECT_TRUE(torch::equal(std::get<0>(lstm(input)), expected));
  std::get<0>(lstm(input)).sum().backward();
  torch::optim::SGD(parameters, 0.5).step();
  EXPECT_FALSE(torch::equal(std::get<0>(lstm(input)), expected));
  for (std::size_t i = 1; i < parameters.size(); ++i) EXPECT_TRUE(is_behind(parameters[i], parameters[i - 1]));
}

TEST(FlatParameters, CanBeConvertedAndClonedAlone) {
  torch::nn::Linear layer(3, 2);
  lay({layer->weight, layer->bias});
  const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer->clone());
  EXPECT_TRUE(torch::equal(copy->weight, layer->weight));
  {
    const torch::NoGradGuard no_grad;
    copy->weight.zero_();
  }
  EXPECT_TRUE(layer->weight.any().item<bool>());
  layer->to(torch::kDouble);
  EXPECT_EQ(layer->weight.scalar_type(), torch::kDouble);
  EXPECT_EQ(layer(torch::ones({1, 3}, torch::kDouble)).numel(), 2);
}

}  // namespace
}  // namespace ddp
