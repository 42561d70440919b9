#include "ddp/tensor_visitor.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace ddp {
namespace {

struct Pair {
  at::Tensor left;
  std::vector<at::Tensor> right;
};

template <class T>
std::vector<int> visited(const T& value) {
  std::vector<int> numbers;
  auto note = [&](const at::Tensor& tensor) { numbers.push_back(tensor.defined() ? tensor.item<int>() : -1); };
  visit_tensors(value, note);
  return numbers;
}

at::Tensor number(int value) { return torch::tensor(value); }

}  // namespace

template <>
struct TensorVisitor<Pair> {
  template <class F>
  static void visit(const Pair& pair, F& f) {
    visit_tensors(pair.left, f);
    visit_tensors(pair.right, f);
  }
};

namespace {

TEST(TensorVisitor, FindsTensorsInContainersInTheirOrder) {
  EXPECT_EQ(visited(number(1)), (std::vector<int>{1}));
  EXPECT_EQ(visited(std::tuple(number(1), 2.5, std::pair(number(2), std::string("x")))), (std::vector<int>{1, 2}));
  EXPECT_EQ(visited(std::vector{number(3), number(4)}), (std::vector<int>{3, 4}));
  EXPECT_EQ(visited(std::array{number(5), number(6)}), (std::vector<int>{5, 6}));
  EXPECT_EQ(visited(std::map<std::string, at::Tensor>{{"a", number(7)}, {"b", number(8)}}), (std::vector<int>{7, 8}));
  EXPECT_EQ(visited(std::unordered_map<int, at::Tensor>{{1, number(9)}}), (std::vector<int>{9}));
}

TEST(TensorVisitor, SkipsEmptyOptionalsAndShowsUndefinedTensors) {
  EXPECT_EQ(visited(std::optional<at::Tensor>()), (std::vector<int>{}));
  EXPECT_EQ(visited(std::optional(number(1))), (std::vector<int>{1}));
  EXPECT_EQ(visited(at::Tensor()), (std::vector<int>{-1}));
  EXPECT_EQ(visited(42), (std::vector<int>{}));
}

TEST(TensorVisitor, FindsTensorsInAStructThatSaysHow) {
  EXPECT_EQ(visited(std::vector{Pair{number(1), {number(2), number(3)}}}), (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace ddp
