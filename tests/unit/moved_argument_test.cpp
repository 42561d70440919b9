// Arguments of forward() on another device; "meta" is one that every build has.
#include "ddp/moved_argument.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "support/thrown.hpp"

namespace ddp {

struct Boxes {
  torch::Tensor corners;
};
struct Labels {
  torch::Tensor names;
};

template <>
struct TensorVisitor<Boxes> {
  static void visit(auto& boxes, auto& f) { visit_tensors(boxes.corners, f); }
};
template <>
struct TensorVisitor<Labels> {
  static void visit(const Labels& labels, auto& f) { visit_tensors(labels.names, f); }
};

namespace {

using detail::MovedArgument;

const at::Device kThere(at::kMeta);

TEST(MovedArgument, HasItsTensorsOnTheDeviceAndLeavesTheGivenOnes) {
  const auto given = torch::ones({2});
  EXPECT_EQ(MovedArgument<const torch::Tensor&>(given, kThere).get().device(), kThere);
  EXPECT_EQ(given.device(), at::Device(at::kCPU));
  std::tuple<torch::Tensor, std::vector<torch::Tensor>> both{torch::ones({1}), {torch::ones({2}), torch::Tensor()}};
  MovedArgument<decltype(both)&> moved(both, kThere);
  EXPECT_EQ(std::get<0>(moved.get()).device(), kThere);
  EXPECT_EQ(std::get<1>(moved.get())[0].device(), kThere);
  EXPECT_FALSE(std::get<1>(moved.get())[1].defined());
  Boxes boxes{torch::ones({4})};
  EXPECT_EQ(MovedArgument<Boxes&>(boxes, kThere).get().corners.device(), kThere);
}

TEST(MovedArgument, IsOfTheCategoryThatWasGiven) {
  static_assert(std::is_same_v<decltype(std::declval<MovedArgument<torch::Tensor&>>().get()), torch::Tensor&>);
  static_assert(std::is_same_v<decltype(std::declval<MovedArgument<torch::Tensor>>().get()), torch::Tensor&&>);
  EXPECT_EQ(MovedArgument<torch::Tensor>(torch::ones({2}), kThere).get().device(), kThere);
}

TEST(MovedArgument, IsTheGivenOneWhereItHoldsNoTensorsOrCannotBeCopied) {
  std::vector<int> route{2, 1};
  int depth = 3;
  struct Own {
    int value = 0;
  } own;
  auto unique = std::make_unique<int>(4);
  EXPECT_EQ(&MovedArgument<int&>(depth, kThere).get(), &depth);
  EXPECT_EQ(&MovedArgument<Own&>(own, kThere).get(), &own);
  EXPECT_EQ(&MovedArgument<std::unique_ptr<int>&>(unique, kThere).get(), &unique);
  EXPECT_EQ(MovedArgument<std::vector<int>&>(route, kThere).get(), route);
  std::vector<std::unique_ptr<int>> uniques;
  EXPECT_EQ(&MovedArgument<std::vector<std::unique_ptr<int>>&>(uniques, kThere).get(), &uniques);
  std::vector<Own> owns{{5}};  // a type that no TensorVisitor knows, in one that is known
  EXPECT_EQ(MovedArgument<std::vector<Own>&>(owns, kThere).get().at(0).value, 5);
}

TEST(MovedArgument, OfATypeWhoseTensorsCannotBeReplacedIsRefusedUnlessTheyAreThere) {
  Labels labels{torch::ones({4})};
  EXPECT_NE(
      testing::error_of<std::logic_error>([&] { MovedArgument<Labels&>(labels, kThere); }).find("let it take auto&"),
      std::string::npos);
  EXPECT_EQ(MovedArgument<Labels&>(labels, at::kCPU).get().names.sizes(), labels.names.sizes());
}

}  // namespace
}  // namespace ddp
