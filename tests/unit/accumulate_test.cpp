#include "ddp/accumulate.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "support/text.hpp"
#include "support/thrown.hpp"
#include "support/training.hpp"
#include "unit/log_heard.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;

// The first one here: it is said once a process.
TEST(Accumulate, SaysOnceThatTheLossesOwnBackwardDoesNotDivide) {
  const auto said = heard([] {
    torch::nn::Linear net(1, 1);
    for (const int number : {1, 2}) {
      const auto micro = accumulate(net, number, 2);
      net(torch::ones({1, 1})).sum().backward();
    }
  });
  EXPECT_EQ(count(said, "call micro.backward(loss)"), 1) << said;
}

std::string steps_and_divisors(std::int64_t per_step, std::int64_t batches, bool is_total_known) {
  std::string text;
  torch::nn::Linear net(1, 1);
  for (std::int64_t number = 1; number <= batches; ++number) {
    const auto micro = is_total_known ? accumulate(net, number, per_step, batches) : accumulate(net, number, per_step);
    text += std::to_string(micro.divisor()) + (micro.steps() ? "! " : " ");
  }
  return text;
}

TEST(Accumulate, StepsAfterSoManyAndARemainderWithItsOwnDivisor) {
  EXPECT_EQ(steps_and_divisors(1, 2, true), "1! 1! ");
  EXPECT_EQ(steps_and_divisors(3, 6, true), "3 3 3! 3 3 3! ");
  EXPECT_EQ(steps_and_divisors(3, 5, true), "3 3 3! 2 2! ");
  EXPECT_EQ(steps_and_divisors(3, 4, true), "3 3 3! 1! ");
  EXPECT_EQ(steps_and_divisors(8, 2, true), "2 2! ");
  EXPECT_EQ(steps_and_divisors(3, 5, false), "3 3 3! 3 3 ");
}

TEST(Accumulate, GivesTheGradientOfTheWholeBatchInOneProcess) {
  Perceptron net, reference;
  const auto whole = Batch::of_step(0, 10);  // 5 micro-batches of 2
  std::size_t number = 0;
  for (const auto& input : whole.input.chunk(5)) {
    auto micro = accumulate(net, ++number, 8, 5);
    micro.backward(squared_error(net(input), whole.target.chunk(5)[number - 1]));
  }
  squared_error(reference(whole.input), whole.target).backward();
  expect_same_gradients(*net, *reference);
}

TEST(Accumulate, RefusesNumbersThatMakeNoSense) {
  torch::nn::Linear net(1, 1);
  EXPECT_THROW(static_cast<void>(accumulate(net, 0, 2)), std::logic_error);
  EXPECT_THROW(static_cast<void>(accumulate(net, 1, 0)), std::logic_error);
  EXPECT_THROW(static_cast<void>(accumulate(net, 4, 2, 3)), std::logic_error);
}

TEST(Accumulate, RefusesASecondBackward) {
  torch::nn::Linear net(1, 1);
  auto micro = accumulate(net, 1, 2);
  micro.backward(net(torch::ones({1, 1})).sum());
  expect_contains(error_of<std::logic_error>([&] { micro.backward(net(torch::ones({1, 1})).sum()); }),
                  {"twice for one micro-batch"});
}

}  // namespace
}  // namespace ddp
