#include "comm/shm/combine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/shm/combine_kernels.hpp"
#include "shm_combine_oracle.hpp"

namespace ddp::comm::shm {
namespace {

using testing::Bfloat16;
using testing::expected_of;
using testing::Float16;
using testing::kIsHalf;
using testing::same;
using testing::type_of;

constexpr Combine kCombines[] = {Combine::sum, Combine::min, Combine::max, Combine::product};
constexpr std::size_t kCounts[] = {0, 1, 7, 63, 64, 65, 5000};

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets;
  for (const auto set : kInstructionSets) {
    if (has(set)) sets.push_back(set);
  }
  return sets;
}

template <typename T>
std::string text_of(T value) {
  if constexpr (kIsHalf<T>) return std::to_string(value.value());
  if constexpr (!kIsHalf<T>) return std::to_string(value);
}

// Ordinary numbers, with any bits between them: infinities, NaNs, subnormals, zeros of both signs.
template <typename T>
T random_value(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  if constexpr (kIsHalf<T>) {
    if (bits % 8 != 0) return T::nearest(std::normal_distribution<double>(0, 4)(random));
    return {static_cast<std::uint16_t>(bits >> 16)};
  } else if constexpr (std::is_floating_point_v<T>) {
    if (bits % 8 != 0) return std::normal_distribution<T>(0, 4)(random);
    static const T kSpecial[] = {0, std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN(),
                                 std::numeric_limits<T>::denorm_min() * 5, std::numeric_limits<T>::max()};
    return kSpecial[(bits >> 8) % 5] * ((bits >> 16) % 2 == 0 ? T{1} : T{-1});
  } else {
    return static_cast<T>(bits >> 8);
  }
}

enum class Outputs { the_inputs, the_last_input, one_other, three_others };

// Ranges of `count` elements that start one element behind a vector's start and have a guard on both sides.
template <typename T>
class Buffers {
 public:
  Buffers(std::size_t input_count, std::size_t count, std::uint64_t seed) : count_(count), ranges_(input_count + 3) {
    std::mt19937_64 random(seed);
    guard_ = random_value<T>(random);
    for (auto& range : ranges_) {
      range.assign(count + 2, guard_);
      for (std::size_t i = 1; i <= count; ++i) range[i] = random_value<T>(random);
    }
    initial_ = ranges_;
  }

  std::size_t input_count() const { return ranges_.size() - 3; }
  std::size_t count() const { return count_; }

  std::vector<T> expected(Combine op) const {
    std::vector<T> results;
    std::vector<T> values(input_count());
    for (std::size_t i = 1; i <= count_; ++i) {
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = initial_[k][i];
      results.push_back(expected_of(op, values));
    }
    return results;
  }

  // Writes the ranges from `first` on to the outputs, and returns which ranges these are.
  std::vector<std::size_t> run(InstructionSet set, Combine op, Outputs kind, std::vector<std::size_t> cuts = {}) {
    ranges_ = initial_;
    const auto written = outputs_of(kind);
    cuts.push_back(count_);
    std::size_t start = 0;
    for (const std::size_t end : cuts) {
      std::vector<const std::byte*> inputs;
      std::vector<std::byte*> outputs;
      for (std::size_t k = 0; k < input_count(); ++k) inputs.push_back(at(k, start));
      for (const std::size_t range : written) outputs.push_back(at(range, start));
      combine_with(set, type_of<T>(), op, {inputs.data(), inputs.size(), outputs.data(), outputs.size(), end - start});
      start = end;
    }
    return written;
  }

  // Of the first element that is not as it should be; empty if there is none.
  std::string fault(const std::vector<std::size_t>& written, const std::vector<T>& expected) const {
    for (std::size_t range = 0; range < ranges_.size(); ++range) {
      const bool is_output = std::find(written.begin(), written.end(), range) != written.end();
      for (std::size_t i = 0; i < count_ + 2; ++i) {
        const bool inside = is_output && i > 0 && i <= count_;
        const T right = inside ? expected[i - 1] : initial_[range][i];
        if (same(ranges_[range][i], right)) continue;
        return "range " + std::to_string(range) + (inside ? " at " : " which is not written there, at ") +
               std::to_string(i) + ": " + text_of(ranges_[range][i]) + " and not " + text_of(right);
      }
    }
    return {};
  }

 private:
  std::byte* at(std::size_t range, std::size_t i) {
    return reinterpret_cast<std::byte*>(ranges_[range].data() + 1 + i);
  }

  std::vector<std::size_t> outputs_of(Outputs kind) const {
    const std::size_t others = input_count();
    if (kind == Outputs::the_last_input) return {others - 1};
    if (kind == Outputs::one_other) return {others};
    if (kind == Outputs::three_others) return {others, others + 1, others + 2};
    std::vector<std::size_t> all(others);
    std::iota(all.rbegin(), all.rend(), 0);  // in another order than the inputs
    return all;
  }

  std::size_t count_;
  std::vector<std::vector<T>> ranges_;
  std::vector<std::vector<T>> initial_;
  T guard_;
};

template <typename T>
std::string describe(InstructionSet set, Combine op, const Buffers<T>& buffers, Outputs kind) {
  return "type " + std::to_string(static_cast<int>(type_of<T>())) + ", set " + std::to_string(static_cast<int>(set)) +
         ", op " + std::to_string(static_cast<int>(op)) + ", " + std::to_string(buffers.input_count()) + " inputs of " +
         std::to_string(buffers.count()) + ", outputs " + std::to_string(static_cast<int>(kind));
}

template <typename T>
void check(Buffers<T>& buffers, const std::vector<std::size_t>& cuts = {}) {
  for (const auto op : kCombines) {
    const auto expected = buffers.expected(op);
    for (const auto set : instruction_sets()) {
      for (const auto kind :
           {Outputs::the_inputs, Outputs::the_last_input, Outputs::one_other, Outputs::three_others}) {
        const auto written = buffers.run(set, op, kind, cuts);
        ASSERT_EQ(buffers.fault(written, expected), "") << describe(set, op, buffers, kind);
      }
    }
  }
}

template <typename T>
void check_all_counts() {
  for (std::size_t input_count = 1; input_count <= 5; ++input_count) {
    for (const std::size_t count : kCounts) {
      Buffers<T> buffers(input_count, count, count + input_count);
      check(buffers);
    }
  }
}

template <typename T>
void check_cuts_and_many_inputs() {
  for (const std::size_t input_count : {2, 16}) {
    Buffers<T> buffers(input_count, 4500, input_count);
    check(buffers, {1, 2, 33, 100, 100, 2047, 2200, 4499});
  }
}

// op over single elements that lie between zeros, in every set.
template <typename T>
std::vector<T> results_of(Combine op, const std::vector<T>& values) {
  std::vector<T> results;
  for (const auto set : instruction_sets()) {
    for (const std::size_t position : {0, 36}) {  // in a vector, and in what no vector holds
      std::vector<std::vector<T>> ranges(values.size(), std::vector<T>(37));
      std::vector<const std::byte*> inputs;
      for (std::size_t k = 0; k < values.size(); ++k) {
        ranges[k][position] = values[k];
        inputs.push_back(reinterpret_cast<const std::byte*>(ranges[k].data()));
      }
      auto* output = reinterpret_cast<std::byte*>(ranges[0].data());
      combine_with(set, type_of<T>(), op, {inputs.data(), inputs.size(), &output, 1, 37});
      results.push_back(ranges[0][position]);
    }
  }
  return results;
}

template <typename T>
void expect_half(Combine op, std::initializer_list<double> values, double expected) {
  std::vector<T> halves;
  for (const double value : values) {
    halves.push_back(T::nearest(value));
    ASSERT_EQ(halves.back().value(), value) << "no number of this type";
  }
  for (const T result : results_of(op, halves)) {
    EXPECT_TRUE(same(result, T::nearest(expected))) << result.value() << " and not " << expected;
  }
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ShmCombine, FloatsAreThoseOfASequentialLoop) {
  check_all_counts<float>();
  check_all_counts<double>();
}

TEST(ShmCombine, HalfTypesAreCombinedInFloatAndRoundedToTheNearest) {
  check_all_counts<Bfloat16>();
  check_all_counts<Float16>();
}

TEST(ShmCombine, IntegersWrap) {
  check_all_counts<std::int8_t>();
  check_all_counts<std::uint8_t>();
  check_all_counts<std::int16_t>();
  check_all_counts<std::int32_t>();
  check_all_counts<std::int64_t>();
}

TEST(ShmCombine, CutsDoNotChangeTheBitsOfTwoOrManyInputs) {
  check_cuts_and_many_inputs<float>();
  check_cuts_and_many_inputs<double>();
  check_cuts_and_many_inputs<Bfloat16>();
  check_cuts_and_many_inputs<Float16>();
  check_cuts_and_many_inputs<std::int8_t>();
  check_cuts_and_many_inputs<std::int64_t>();
}

TEST(ShmCombine, OfEqualZerosMinAndMaxTakeTheFirst) {
  for (const auto op : {Combine::min, Combine::max}) {
    for (const float result : results_of<float>(op, {0.0F, -0.0F, 0.0F})) EXPECT_FALSE(std::signbit(result));
    for (const float result : results_of<float>(op, {-0.0F, 0.0F})) EXPECT_TRUE(std::signbit(result));
  }
}

TEST(ShmCombine, ANaNInAnyInputGivesANaN) {
  for (const auto op : kCombines) {
    for (std::size_t k = 0; k < 4; ++k) {
      std::vector<float> values{1, 2, 3, 4};
      values[k] = std::numeric_limits<float>::quiet_NaN();
      for (const float result : results_of(op, values)) EXPECT_TRUE(std::isnan(result)) << k;
      std::vector<Float16> halves(4, Float16{0x3c00});
      std::vector<Bfloat16> bfloats(4, Bfloat16{0x3f80});
      // The largest bits of either sign, which must not be carried into zero, and the smallest, not cut to infinity.
      for (const unsigned bits : {0x7fffu, 0xffffu, 0x7f81u, 0x7c01u}) {
        halves[k].bits = static_cast<std::uint16_t>(bits);
        bfloats[k].bits = static_cast<std::uint16_t>(bits == 0x7c01u ? 0xff81u : bits);
        for (const auto result : results_of(op, halves)) EXPECT_TRUE(std::isnan(result.value())) << k;
        for (const auto result : results_of(op, bfloats)) EXPECT_TRUE(std::isnan(result.value())) << k;
      }
    }
  }
}

TEST(ShmCombine, Float16RoundsTiesToTheEvenNumber) {
  expect_half<Float16>(Combine::sum, {2048, 1}, 2048);
  expect_half<Float16>(Combine::sum, {2050, 1}, 2052);
  expect_half<Float16>(Combine::sum, {-2050, -1}, -2052);
  expect_half<Float16>(Combine::sum, {2048, 1, 0x1p-10}, 2050);
  expect_half<Float16>(Combine::sum, {65504, 15.9921875}, 65504);
  expect_half<Float16>(Combine::sum, {65504, 16}, kInfinity);
  expect_half<Float16>(Combine::sum, {-65504, -65504}, -kInfinity);
  expect_half<Float16>(Combine::sum, {kInfinity, -kInfinity}, std::nan(""));
  expect_half<Float16>(Combine::product, {0x1p-14, 0x1p-10}, 0x1p-24);
  expect_half<Float16>(Combine::product, {0x1p-14, 0x1p-11}, 0);
  expect_half<Float16>(Combine::product, {-0x1p-14, 0x1.004p-11}, -0x1p-24);
  expect_half<Float16>(Combine::product, {0x3p-14, 0x1p-11}, 0x2p-24);
  expect_half<Float16>(Combine::product, {0x1.ff8p-15, 0x1.ffcp-1}, 0x1.ff8p-15);  // the largest subnormal one
  expect_half<Float16>(Combine::product, {0x1.ffcp-14, 0x1p-1}, 0x1p-14);          // rounds up to a normal number
  expect_half<Float16>(Combine::product, {0x1p-24, 0x1p-24}, 0);
}

TEST(ShmCombine, Bfloat16RoundsTiesToTheEvenNumber) {
  expect_half<Bfloat16>(Combine::sum, {256, 1}, 256);
  expect_half<Bfloat16>(Combine::sum, {258, 1}, 260);
  expect_half<Bfloat16>(Combine::sum, {-258, -1}, -260);
  expect_half<Bfloat16>(Combine::sum, {256, 1, 0x1p-10}, 258);
  expect_half<Bfloat16>(Combine::sum, {0x1.fep127, 0x1p118}, 0x1.fep127);
  expect_half<Bfloat16>(Combine::sum, {0x1.fep127, 0x1p119}, kInfinity);
  expect_half<Bfloat16>(Combine::sum, {kInfinity, -kInfinity}, std::nan(""));
  expect_half<Bfloat16>(Combine::product, {0x1p-126, 0x1p-7}, 0x1p-133);
  expect_half<Bfloat16>(Combine::product, {0x1p-126, 0x1p-8}, 0);
  expect_half<Bfloat16>(Combine::product, {-0x3p-126, 0x1p-8}, -0x2p-133);
}

TEST(ShmCombine, HalfTypesAreRoundedOnceHoweverManyInputsThereAre) {
  expect_half<Float16>(Combine::sum, {2048, 1, 1}, 2050);
  expect_half<Float16>(Combine::sum, {65504, 65504, -65504}, 65504);
  expect_half<Bfloat16>(Combine::sum, {256, 1, 1}, 258);
}

TEST(ShmCombine, EveryNumberOfAHalfTypeComesBackAsItWas) {
  const auto check_type = [](auto half) {
    using T = decltype(half);
    std::vector<T> all(1U << 16);
    for (std::size_t bits = 0; bits < all.size(); ++bits) all[bits].bits = static_cast<std::uint16_t>(bits);
    for (const auto set : instruction_sets()) {
      for (const std::size_t input_count : {2, 3}) {
        std::vector<T> result(all.size());
        const std::vector<const std::byte*> inputs(input_count, reinterpret_cast<const std::byte*>(all.data()));
        auto* output = reinterpret_cast<std::byte*>(result.data());
        combine_with(set, type_of<T>(), Combine::max, {inputs.data(), input_count, &output, 1, all.size()});
        for (std::size_t i = 0; i < all.size(); ++i) ASSERT_TRUE(same(result[i], all[i])) << i;
      }
    }
  };
  check_type(Float16{});
  check_type(Bfloat16{});
}

TEST(ShmCombine, UsesTheBestInstructionSetThatIsThere) {
  const auto sets = instruction_sets();
  ASSERT_EQ(sets.front(), InstructionSet::baseline);
  EXPECT_EQ(best_instruction_set(), sets.back());

  std::vector<float> a(100, 1.5F);
  std::vector<float> b(100, 2.5F);
  const std::byte* const inputs[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  std::byte* const outputs[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  combine(Type::float32, Combine::sum, inputs, 2, outputs, 2, a.size());
  EXPECT_EQ(a, std::vector<float>(100, 4.0F));
  EXPECT_EQ(b, a);
}

TEST(ShmCombine, TypesHaveTheirSizes) {
  EXPECT_EQ(bytes_of(type_of<float>()), sizeof(float));
  EXPECT_EQ(bytes_of(type_of<double>()), sizeof(double));
  EXPECT_EQ(bytes_of(type_of<Bfloat16>()), sizeof(Bfloat16));
  EXPECT_EQ(bytes_of(type_of<Float16>()), sizeof(Float16));
  EXPECT_EQ(bytes_of(type_of<std::int8_t>()), sizeof(std::int8_t));
  EXPECT_EQ(bytes_of(type_of<std::uint8_t>()), sizeof(std::uint8_t));
  EXPECT_EQ(bytes_of(type_of<std::int16_t>()), sizeof(std::int16_t));
  EXPECT_EQ(bytes_of(type_of<std::int32_t>()), sizeof(std::int32_t));
  EXPECT_EQ(bytes_of(type_of<std::int64_t>()), sizeof(std::int64_t));
}

}  // namespace
}  // namespace ddp::comm::shm
