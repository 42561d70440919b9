#include "reduce/side_by_side.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <sstream>
#include <vector>

namespace ddp {
namespace {

using Sizes = std::vector<std::int64_t>;
constexpr std::size_t kLargePage = std::size_t{2} << 20;

const char* start_of(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }
const char* end_of(const at::Tensor& tensor) { return start_of(tensor) + tensor.nbytes(); }

TEST(SideBySide, LaysTensorsOneBehindTheOther) {
  const auto tensors = side_by_side({torch::ones({2, 3}), torch::ones({5}), torch::ones({1, 1, 7})});
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(start_of(tensors[1]), end_of(tensors[0]));
  EXPECT_EQ(start_of(tensors[2]), end_of(tensors[1]));
  EXPECT_EQ(tensors[0].sizes(), (Sizes{2, 3}));
  EXPECT_EQ(tensors[2].sizes(), (Sizes{1, 1, 7}));
}

TEST(SideBySide, GivesZerosWithoutGradients) {
  for (const auto& tensor : side_by_side({torch::ones({300, 300}).requires_grad_(), torch::ones({7}, torch::kLong)})) {
    EXPECT_FALSE(tensor.any().item<bool>());
    EXPECT_FALSE(tensor.requires_grad());
  }
}

TEST(SideBySide, LaysEachDtypeByItself) {
  const auto tensors = side_by_side({torch::ones({3}), torch::ones({2}, torch::kDouble), torch::ones({4}),
                                     torch::ones({5}, torch::kDouble), torch::ones({3}, torch::kHalf)});
  EXPECT_EQ(start_of(tensors[2]), end_of(tensors[0]));
  EXPECT_EQ(start_of(tensors[3]), end_of(tensors[1]));
  EXPECT_EQ(tensors[3].scalar_type(), torch::kDouble);
  EXPECT_EQ(tensors[4].scalar_type(), torch::kHalf);
}

TEST(SideBySide, KeepsStridesOfTensorsThatFillTheirMemory) {
  const auto images = torch::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto turned = torch::ones({3, 4}).t();
  const auto tensors = side_by_side({images, turned, torch::ones({2})});
  EXPECT_EQ(tensors[0].strides(), images.strides());
  EXPECT_EQ(tensors[1].strides(), (Sizes{1, 4}));
  EXPECT_EQ(start_of(tensors[1]), end_of(tensors[0]));
  EXPECT_EQ(start_of(tensors[2]), end_of(tensors[1]));
}

TEST(SideBySide, IsRowMajorWhereThereAreGapsOrOverlaps) {
  const auto tensors = side_by_side({torch::ones({4, 6}).slice(1, 0, 6, 2), torch::ones({1}).expand({3, 2})});
  EXPECT_EQ(tensors[0].strides(), (Sizes{3, 1}));
  EXPECT_EQ(tensors[1].strides(), (Sizes{2, 1}));
  EXPECT_EQ(start_of(tensors[1]), end_of(tensors[0]));
}

TEST(SideBySide, TakesNumbersAndTensorsWithoutElements) {
  const auto tensors = side_by_side({torch::ones({}), torch::ones({0, 4}), torch::ones({2})});
  EXPECT_EQ(tensors[0].dim(), 0);
  EXPECT_EQ(tensors[0].item<float>(), 0.0F);
  EXPECT_EQ(tensors[1].sizes(), (Sizes{0, 4}));
  EXPECT_EQ(start_of(tensors[2]), end_of(tensors[0]));
  EXPECT_TRUE(side_by_side({}).empty());
}

TEST(SideBySide, GivesEachAStorageOfItsOwn) {
  const auto tensors = side_by_side({torch::ones({1000}), torch::ones({20})});
  for (const auto& tensor : tensors) {
    EXPECT_EQ(tensor.storage().nbytes(), tensor.nbytes());
    EXPECT_EQ(tensor.storage_offset(), 0);
    EXPECT_EQ(tensor.storage().use_count(), 1U);
  }
  std::ostringstream file, own;
  torch::save(tensors[1], file);
  torch::save(torch::zeros({20}), own);
  EXPECT_EQ(file.str().size(), own.str().size());
}

TEST(SideBySide, BeginsWhereALargePageMayBegin) {
  const auto tensors = side_by_side({torch::ones({1 << 20}), torch::ones({1 << 20}, torch::kDouble)});
  for (const auto& tensor : tensors) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(start_of(tensor)) % kLargePage, 0U);
}

const auto kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

/// Of the page in which `address` lies.
enum class State { gone, mapped, resident };
State state_at(const char* address) {
  auto* const page = const_cast<char*>(address) - reinterpret_cast<std::uintptr_t>(address) % kPage;
  unsigned char is_resident = 0;
  if (::mincore(page, 1, &is_resident) != 0) return State::gone;
  return (is_resident & 1) != 0 ? State::resident : State::mapped;
}

TEST(SideBySide, FreesItsMemoryWithTheLastTensor) {
  auto tensors = side_by_side({torch::ones({1 << 20}), torch::ones({3})});
  const auto* const memory = start_of(tensors[0]);
  auto last = tensors[1].view({3, 1});
  tensors.clear();
  EXPECT_EQ(state_at(memory), State::mapped);
  EXPECT_FALSE(last.any().item<bool>());
  last.reset();
  EXPECT_EQ(state_at(memory), State::gone);
}

TEST(SideBySide, FreesATensorsWholePagesWithIt) {
  const auto elements = static_cast<std::int64_t>(kPage);
  auto tensors = side_by_side({torch::ones({3}), torch::ones({elements}), torch::ones({5})});
  for (const auto& tensor : tensors) tensor.fill_(7);
  const auto* const first = start_of(tensors[1]);
  const auto* const last = end_of(tensors[1]) - 1;
  EXPECT_EQ(state_at(first + kPage), State::resident);
  tensors.erase(tensors.begin() + 1);
  EXPECT_EQ(state_at(first + kPage), State::mapped);
  EXPECT_EQ(state_at(first), State::resident);  // with a neighbour
  EXPECT_EQ(state_at(last), State::resident);
  for (const auto& tensor : tensors) EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, 7)));
}

TEST(SideBySide, KnowsItsTensorsAlsoByAViewOfThem) {
  const auto tensors = side_by_side({torch::ones({4})});
  EXPECT_TRUE(is_from_side_by_side(tensors[0]));
  EXPECT_TRUE(is_from_side_by_side(tensors[0].slice(0, 1, 2)));
  EXPECT_FALSE(is_from_side_by_side(tensors[0].clone()));
  EXPECT_FALSE(is_from_side_by_side(torch::ones({2}).to_sparse()));
}

}  // namespace
}  // namespace ddp
