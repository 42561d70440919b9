#include <ATen/ops/mul.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "reduce/gradient_pack.hpp"
#include "reduce/pack_choice.hpp"
#include "reduce/pack_layout.hpp"

namespace ddp {
namespace {

constexpr std::int64_t kChunkOfFloats = pack::kChunkBytes / sizeof(float);

// The device's blocks and threads one after another.
template <class Element, class Change>
void run_grid(const pack::Table& table, const Change& change) {
  for (std::uint32_t block = 0; block < table.blocks(); ++block)
    for (unsigned thread = 0; thread < pack::kThreads; ++thread) pack::run<Element>(table, block, thread, change);
}

template <class Element>
void copy_grid(const pack::Table& table) {
  run_grid<Element>(table, [](Element element) { return element; });
}

// Products in `Product`, as pack_kernel.cu.
template <class Element, class Product = Element>
void multiply_grid(const pack::Table& table) {
  const auto factor = static_cast<Product>(table.factor);
  run_grid<Element>(table,
                    [factor](Element element) { return static_cast<Element>(static_cast<Product>(element) * factor); });
}

void run_kernel(PackKernel kernel, const pack::Table& table) {
  constexpr std::array<void (*)(const pack::Table&), kPackKernels> grids{
      &copy_grid<std::uint8_t>,        &copy_grid<std::uint16_t>,
      &copy_grid<std::uint32_t>,       &copy_grid<std::uint64_t>,
      &multiply_grid<float>,           &multiply_grid<double>,
      &multiply_grid<at::Half, float>, &multiply_grid<at::BFloat16, float>};
  grids[static_cast<std::size_t>(kernel)](table);
}

int packed = 0;  // calls of host_pack

// A PackFunction in the host's memory.
bool host_pack(at::TensorList slots, at::TensorList gradients, double factor) {
  ++packed;
  const auto choice = choose_pack_kernel(slots.front().scalar_type(), factor);
  if (!choice) return false;
  const pack::Table empty{reinterpret_cast<std::uintptr_t>(slots.front().storage().mutable_data()), factor};
  pack::for_each_table(empty, pack_segments(slots, gradients, choice->units), choice->unit_bytes,
                       [&](const pack::Table& table) { run_kernel(choice->kernel, table); });
  return true;
}

// A bucket's memory with gaps, and gradients at odd places of other memory.
struct Case {
  Case(const std::vector<std::int64_t>& sizes, at::ScalarType dtype) {
    std::int64_t elements = 0;
    for (const auto size : sizes) elements += size + 1;
    flat = numbers(elements, dtype);
    const auto memory = numbers(elements + 1, dtype);
    std::int64_t offset = 0;
    for (const auto size : sizes) {
      slots.push_back(flat.narrow(0, offset, size));
      gradients.push_back(memory.narrow(0, offset + gradients.size() % 2, size));
      offset += size + 1;
    }
  }

  static at::Tensor numbers(std::int64_t count, at::ScalarType dtype) {
    if (!at::isFloatingType(dtype) && !at::isComplexType(dtype)) return torch::randint(0, 2, {count}).to(dtype);
    if (at::isComplexType(dtype)) return torch::randn({count}, torch::kComplexDouble).to(dtype);
    return torch::randn({count}, torch::kDouble).to(dtype);
  }

  // What the operator would leave in the whole of `flat`.
  at::Tensor expected(double factor) const {
    auto result = flat.clone();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      auto out = result.narrow(0, slots[i].storage_offset(), slots[i].numel());
      if (factor == 1)
        out.copy_(gradients[i]);
      else
        at::mul_out(out, gradients[i], Scale(factor).tensor);
    }
    return result;
  }

  at::Tensor flat;
  std::vector<at::Tensor> slots;
  std::vector<at::Tensor> gradients;
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

std::vector<std::int64_t> odd_sizes() {
  return {0, 1, 3, 0, 7, 16, 33, kChunkOfFloats - 1, kChunkOfFloats, kChunkOfFloats + 1, 2 * kChunkOfFloats + 5, 40003};
}

TEST(Pack, GivesTheOperatorsBitsForEveryDtypeThatIsMultiplied) {
  torch::manual_seed(1);
  for (const auto dtype :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kComplexFloat, torch::kComplexDouble})
    for (const double factor : {1.0 / 3, 1.0, 1e-6}) {
      const Case some(odd_sizes(), dtype);
      const auto expected = some.expected(factor);
      ASSERT_TRUE(host_pack(some.slots, some.gradients, factor)) << dtype;
      EXPECT_TRUE(same_bits(some.flat, expected)) << dtype << ' ' << factor;
    }
}

// The operator for the host rounds the factor itself, the device's does not.
TEST(Pack, MultipliesBothPartsOfAComplexHalf) {
  const Case some({1, 100, 17}, torch::kComplexHalf);
  const auto gradient = some.gradients[1].clone();
  ASSERT_TRUE(host_pack(some.slots, some.gradients, 1.0 / 3));
  EXPECT_TRUE(torch::equal(torch::view_as_real(some.slots[1]), torch::view_as_real(gradient) * (1.0 / 3)));
}

TEST(Pack, CopiesEveryDtype) {
  torch::manual_seed(2);
  for (const auto dtype : {torch::kBool, torch::kByte, torch::kShort, torch::kInt, torch::kLong, torch::kFloat8_e4m3fn,
                           torch::kComplexHalf}) {
    const Case some(odd_sizes(), dtype);
    const auto expected = some.expected(1);
    ASSERT_TRUE(host_pack(some.slots, some.gradients, 1)) << dtype;
    EXPECT_TRUE(same_bits(some.flat, expected)) << dtype;
  }
}

TEST(Pack, HasNoKernelThatMultipliesIntegers) {
  EXPECT_FALSE(choose_pack_kernel(torch::kLong, 0.5).has_value());
  EXPECT_FALSE(choose_pack_kernel(torch::kFloat8_e4m3fn, 0.5).has_value());
}

TEST(Pack, TakesMoreSegmentsThanATableHolds) {
  torch::manual_seed(3);
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < 3 * pack::Table::kSegments + 1; ++i) sizes.push_back(i % 11);
  const Case some(sizes, torch::kFloat);
  const auto expected = some.expected(0.1);
  ASSERT_TRUE(host_pack(some.slots, some.gradients, 0.1));
  EXPECT_TRUE(same_bits(some.flat, expected));
}

// A number that counts how often it was written.
template <class Number>
struct Counted {
  Counted() = default;
  Counted(const Counted&) = default;
  Counted& operator=(const Counted& other) {
    value = other.value;
    ++written;
    return *this;
  }
  Number value = 0;
  Number written = 0;
};

// `shift`: how far the target lies from where both could be moved in the widest words.
template <class Number>
void expect_written_once(std::uint64_t elements, std::size_t shift) {
  using Element = Counted<Number>;
  alignas(16) static std::array<Element, 40000> from, to;
  to.fill({});
  for (std::size_t i = 0; i < to.size(); ++i) to[i].written = 0;
  pack::Table table{reinterpret_cast<std::uintptr_t>(to.data()), 1};
  ASSERT_TRUE(pack::add(table, {reinterpret_cast<std::uintptr_t>(from.data()), 8 + shift, elements}, sizeof(Element)));
  run_grid<Element>(table, [](const Element& element) { return element; });
  for (std::size_t i = 0; i < to.size(); ++i)
    ASSERT_EQ(to[i].written, i >= 8 + shift && i < 8 + shift + elements ? 1 : 0)
        << "element " << i << " of " << elements << ", shift " << shift << ", " << sizeof(Element) << " bytes";
}

TEST(Pack, WritesEachElementOnceAndNothingBeyond) {
  for (const std::uint64_t elements : {1, 2, 255, 257, 1023, 2048, 2049, 4099, 8191, 8192, 8193, 20001})
    for (const std::size_t shift : {0, 1, 2, 3}) {
      expect_written_once<std::uint8_t>(elements, shift);
      expect_written_once<std::uint16_t>(elements, shift);
      expect_written_once<std::uint32_t>(elements, shift);
    }
}

TEST(Pack, GivesSegmentsWithoutElementsNoPlace) {
  pack::Table table;
  EXPECT_TRUE(pack::add(table, {0, 0, 0}, 4));
  EXPECT_EQ(table.segments, 0U);
  EXPECT_EQ(table.blocks(), 0U);
}

// Without a function, and with one.
class GradientPackTest : public ::testing::TestWithParam<bool> {
 protected:
  void put_all(const Case& some, double factor) {
    for (std::size_t i = 0; i < some.slots.size(); ++i) pack.put(some.slots[i], some.gradients[i], Scale(factor));
  }
  GradientPack pack{at::kCPU, GetParam() ? &host_pack : nullptr};
};
INSTANTIATE_TEST_SUITE_P(Ways, GradientPackTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "ByAFunction" : "ByOperators"; });

TEST_P(GradientPackTest, GivesTheOperatorsBits) {
  torch::manual_seed(4);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kComplexFloat})
    for (const double factor : {1.0, 1.0 / 3}) {
      const Case some(odd_sizes(), dtype);
      const auto expected = some.expected(factor);
      put_all(some, factor);
      pack.pack();
      EXPECT_TRUE(same_bits(some.flat, expected)) << dtype << ' ' << factor;
    }
}

TEST_P(GradientPackTest, DoesNothingBeforePack) {
  const Case some({5}, torch::kFloat);
  const auto before = some.flat.clone();
  put_all(some, 1);
  EXPECT_TRUE(same_bits(some.flat, before));
  EXPECT_FALSE(pack.is_empty());
}

TEST_P(GradientPackTest, TakesGradientsOfOtherStridesDtypesAndSigns) {
  torch::manual_seed(5);
  const auto flat = torch::zeros({4 * 12}, torch::kComplexFloat);
  const auto slot = [&](std::int64_t i) { return flat.narrow(0, i * 12, 12).view({3, 4}); };
  const std::vector<at::Tensor> gradients{
      torch::randn({4, 3}, torch::kComplexFloat).t(), torch::randn({3, 4}, torch::kComplexDouble),
      torch::randn({3, 4}, torch::kComplexFloat).conj(), torch::randn({3, 8}, torch::kComplexFloat).slice(1, 0, 8, 2)};
  for (std::size_t i = 0; i < gradients.size(); ++i)
    pack.put(slot(static_cast<std::int64_t>(i)), gradients[i], Scale(0.5));
  pack.pack();
  for (std::size_t i = 0; i < gradients.size(); ++i)
    EXPECT_TRUE(torch::equal(slot(static_cast<std::int64_t>(i)),
                             (gradients[i] * 0.5).to(torch::kComplexFloat).resolve_conj().contiguous()))
        << i;
}

TEST_P(GradientPackTest, MultipliesAGradientThatIsItsSlotInPlace) {
  const auto flat = torch::full({4}, 8.0);
  pack.put(flat.narrow(0, 0, 2), flat.narrow(0, 0, 2), Scale(0.25));
  pack.put(flat.narrow(0, 2, 2), flat.narrow(0, 2, 2), Scale(1));
  pack.pack();
  EXPECT_TRUE(torch::equal(flat, torch::tensor({2.0F, 2.0F, 8.0F, 8.0F})));
}

TEST_P(GradientPackTest, ForgetsWhatItHasPacked) {
  const Case some({5, 6}, torch::kFloat);
  put_all(some, 1);
  EXPECT_GT(some.gradients[1].use_count(), 1U);
  pack.pack();
  EXPECT_EQ(some.gradients[1].use_count(), 1U);
  EXPECT_TRUE(pack.is_empty());
  some.flat.zero_();
  pack.pack();
  EXPECT_TRUE(torch::equal(some.flat, torch::zeros_like(some.flat)));
}

TEST(GradientPack, CallsTheFunctionOnceForEachFactor) {
  const Case some(std::vector<std::int64_t>(300, 2), torch::kFloat);
  GradientPack pack(at::kCPU, &host_pack);
  for (std::size_t i = 0; i < some.slots.size(); ++i)
    pack.put(some.slots[i], some.gradients[i], Scale(i % 3 == 0 ? 1 : 0.5));
  packed = 0;
  pack.pack();
  EXPECT_EQ(packed, 2);
  for (std::size_t i = 0; i < some.slots.size(); ++i)
    EXPECT_TRUE(torch::equal(some.slots[i], some.gradients[i] * (i % 3 == 0 ? 1 : 0.5))) << i;
}

TEST(GradientPack, UsesOperatorsWhereTheFunctionCannot) {
  const auto flat = torch::zeros({4});
  GradientPack pack(at::kCPU, [](at::TensorList, at::TensorList, double) { return false; });
  pack.put(flat.narrow(0, 0, 2), torch::full({2}, 3.0F), Scale(1));
  pack.put(flat.narrow(0, 2, 2), torch::full({2}, 3.0F), Scale(0.5));
  pack.pack();
  EXPECT_TRUE(torch::equal(flat, torch::tensor({3.0F, 3.0F, 1.5F, 1.5F})));
}

TEST(GradientPack, HasNoFunctionForTheHost) { EXPECT_EQ(pack_function(at::kCPU), nullptr); }

}  // namespace
}  // namespace ddp
