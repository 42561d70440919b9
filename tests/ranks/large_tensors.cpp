// Tensors beyond 2^31 elements or bytes. Built and run by name, for it needs minutes and about 11 GiB:
//   cmake --build --preset dev --target large_tensors && build/dev/bin/large_tensors
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"

namespace ddp::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

constexpr std::int64_t kManyElements = (std::int64_t{1} << 31) + 8;
constexpr std::int64_t kManyBytes = ((std::int64_t{1} << 31) + 64) / 4;  // of floats

RanksOptions patient() {
  RanksOptions options;
  options.limit = std::chrono::minutes(10);
  options.group_timeout = std::chrono::minutes(5);
  return options;
}

/// Says how much memory the largest rank so far has taken.
class LargeTensors : public ::testing::Test {
 protected:
  void TearDown() override {
    rusage children{};
    ::getrusage(RUSAGE_CHILDREN, &children);
    std::printf("largest rank so far: %.1f GiB\n", static_cast<double>(children.ru_maxrss) / (1 << 20));
  }
};

// All elements, in parts, so that no mask of the whole is made.
void expect_all(const at::Tensor& tensor, double value) {
  constexpr std::int64_t part = 1 << 26;
  for (std::int64_t at = 0; at < tensor.numel(); at += part)
    ASSERT_TRUE(tensor.narrow(0, at, std::min(part, tensor.numel() - at)).eq(value).all().item<bool>())
        << "from " << at;
}

TEST_F(LargeTensors, AllReduceOfMoreThan2To31Int8Elements) {
  run_ranks(
      2,
      [](const Group& group) {
        auto tensor = at::full({kManyElements}, group->rank() + 1, at::kChar);
        tensor[-1] = 5;
        group->all_reduce(tensor);
        expect_all(tensor.narrow(0, 0, kManyElements - 1), 3);
        EXPECT_EQ(tensor[-1].item<int>(), 10);
      },
      patient());
}

TEST_F(LargeTensors, AllReduceOfMoreThan2GiBOfFloats) {
  run_ranks(
      2,
      [](const Group& group) {
        auto tensor = at::full({kManyBytes}, group->rank() + 1.0);
        group->all_reduce(tensor, ReduceOp::avg);
        expect_all(tensor, 1.5);
      },
      patient());
}

TEST_F(LargeTensors, BroadcastOfMoreThan2GiB) {
  run_ranks(
      2,
      [](const Group& group) {
        auto tensor = at::full({kManyBytes}, group->rank() + 1.0);
        group->broadcast(tensor, 1);
        expect_all(tensor, 2);
        auto bytes = at::full({kManyElements}, group->rank() + 1, at::kByte);
        tensor = at::Tensor();
        group->broadcast(bytes, 0);
        expect_all(bytes, 1);
      },
      patient());
}

// Half of it from each: the parts, where they arrive and what Gloo makes of them are there at once.
TEST_F(LargeTensors, AllGatherOfMoreThan2GiBInAll) {
  run_ranks(
      2,
      [](const Group& group) {
        const auto all = group->all_gather(at::full({kManyElements / 2}, group->rank() + 1, at::kByte));
        for (std::size_t rank = 0; rank < 2; ++rank) expect_all(all[rank], static_cast<double>(rank) + 1);
      },
      patient());
}

TEST_F(LargeTensors, SendOfMoreThan2GiB) {
  run_ranks(
      2,
      [](const Group& group) {
        auto tensor = at::full({kManyElements}, group->rank() + 1, at::kByte);
        if (group->rank() == 0)
          group->send(tensor, 1);
        else
          group->recv(tensor, 0);
        expect_all(tensor, 1);
      },
      patient());
}

}  // namespace
}  // namespace ddp::testing
