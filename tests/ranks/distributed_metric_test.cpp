// Metrics over the samples of all ranks, against one process that has them all.
#include "ddp/distributed_metric.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "ddp/distributed_sampler.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

constexpr std::int64_t kClasses = 7;

struct Evaluation {
  at::Tensor scores, target, losses;

  explicit Evaluation(std::int64_t samples) {
    torch::manual_seed(11);
    scores = at::randn({samples, kClasses});
    target = at::randint(kClasses, {samples}, at::kLong);
    losses = at::rand({samples}, at::kDouble);
  }
};

/// This rank's samples in batches of three, as an evaluation goes through them.
void for_each_batch(std::int64_t samples, const Group& group, const std::function<void(const at::Tensor&)>& visit) {
  DistributedSampler sampler(static_cast<std::size_t>(samples), *group, {.pad = false});
  sampler.reset();
  while (const auto batch = sampler.next(3)) {
    const std::vector<std::int64_t> places(batch->begin(), batch->end());
    visit(at::tensor(places, at::kLong));
  }
}

void expect_the_numbers_of_one_process(int world, std::int64_t samples) {
  run_ranks(world, [samples](const Group& group) {
    const Evaluation all(samples);
    MeanLoss loss;
    Accuracy first, among_three(3);
    ConfusionMatrix confusion(kClasses);
    for_each_batch(samples, group, [&](const at::Tensor& places) {
      const auto scores = all.scores.index_select(0, places), target = all.target.index_select(0, places);
      loss.update(all.losses.index_select(0, places).mean(), places.numel());
      first.update(scores, target);
      among_three.update(scores.to(at::kDouble).requires_grad_(), target.to(at::kInt));
      confusion.update(scores, target);
    });
    const auto n = static_cast<double>(samples);
    const auto best = all.scores.argmax(1);
    const auto three = std::get<1>(all.scores.topk(3, 1)).eq(all.target.unsqueeze(1)).any(1);
    EXPECT_EQ(first.compute(*group), best.eq(all.target).sum().item<double>() / n);
    EXPECT_EQ(among_three.compute(*group), three.sum().item<double>() / n);
    EXPECT_NEAR(loss.compute(*group), all.losses.mean().item<double>(), 1e-12);
    const auto expected =
        at::bincount(all.target * kClasses + best, {}, kClasses * kClasses).view({kClasses, kClasses});
    EXPECT_TRUE(at::equal(confusion.compute(*group), expected));
    EXPECT_TRUE(at::equal(confusion.compute(*group), expected)) << "asked again";
  });
}

// Fault R48.
TEST(DistributedMetric, EqualsOneProcessToTheLastSampleWhateverTheRemainder) {
  for (const std::int64_t samples : {10, 11, 12}) expect_the_numbers_of_one_process(3, samples);
}

TEST(DistributedMetric, EqualsOneProcessWhereRanksHaveNoSample) { expect_the_numbers_of_one_process(4, 2); }

TEST(DistributedMetric, EqualsOneProcessOnOneRank) { expect_the_numbers_of_one_process(1, 10); }

// Fault R39.
TEST(DistributedMetric, IsNoMeanOfMeans) {
  run_ranks(2, [](const Group& group) {
    MeanLoss loss;
    if (group->rank() == 0) loss.update(at::full({}, 1.0), 3);
    if (group->rank() == 1) loss.update(at::full({1}, 5.0, at::kHalf), 1);
    EXPECT_EQ(loss.compute(*group), 2.0);
    loss.update(at::full({}, NAN), 0);
    EXPECT_EQ(loss.compute(*group), 2.0) << "an empty batch";
    loss.reset();
    EXPECT_TRUE(std::isnan(loss.compute(*group))) << "nothing seen";
  });
}

TEST(DistributedMetric, OfACopyIsItsOwn) {
  const auto group = init_process_group({.environment = Environment{}});
  Accuracy one;
  one.update(at::eye(2), at::arange(2));
  auto other = one;
  other.update(at::eye(2), at::ones({2}, at::kLong));
  EXPECT_EQ(one.compute(*group), 1.0);
  EXPECT_EQ(other.compute(*group), 0.75);
  one = other;
  one.reset();
  EXPECT_EQ(other.compute(*group), 0.75);
}

TEST(DistributedMetric, CountsEqualScoresAndNumbersThatAreNoneOnce) {
  const auto group = init_process_group({.environment = Environment{}});
  const auto share = [&](const at::Tensor& scores, std::int64_t top_k) {
    Accuracy accuracy(top_k);
    const auto classes = scores.size(1);
    accuracy.update(scores.expand({classes, classes}), at::arange(classes));  // each class once as the target
    return accuracy.compute(*group) * static_cast<double>(classes);
  };
  for (const std::int64_t k : {1, 2, 3}) {
    EXPECT_EQ(share(at::zeros({1, 4}), k), static_cast<double>(k)) << "all equal";
    EXPECT_EQ(share(at::tensor({1.F, NAN, 2.F, NAN}).unsqueeze(0), k), static_cast<double>(k));
    EXPECT_EQ(share(at::full({1, 4}, INFINITY), k), static_cast<double>(k));
  }
}

TEST(DistributedMetric, RefusesWhatDoesNotFitInWords) {
  const auto refuses = [](const std::function<void()>& call, const std::string& text) {
    try {
      call();
      ADD_FAILURE() << "no exception, expected: " << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_TRUE(contains(error.what(), text));
    }
  };
  Accuracy accuracy;
  MeanLoss loss;
  ConfusionMatrix confusion(3);
  const auto scores = at::zeros({2, 3});
  refuses([] { Accuracy(0); }, "Accuracy: top_k is 0");
  refuses([] { ConfusionMatrix(0); }, "ConfusionMatrix: 0 classes");
  refuses([&] { accuracy.update(scores, at::zeros({3}, at::kLong)); },
          "scores [2, 3] and target [3] have different numbers of samples");
  refuses([&] { accuracy.update(at::zeros({2}), at::zeros({2}, at::kLong)); }, "real [samples, classes], not [2]");
  refuses([&] { accuracy.update(scores, at::zeros({2})); }, "target has to be integers [samples], not Float [2]");
  refuses([&] { accuracy.update(scores, at::full({2}, 3, at::kLong)); },
          "target has class 3, but the classes are 0 to 2");
  refuses([&] { accuracy.update(scores, at::full({2}, -1, at::kLong)); }, "target has class -1");
  refuses([&] { accuracy.update({}, {}); }, "not an undefined tensor");
  refuses([&] { loss.update(at::zeros({2}), 2); }, "the loss has to be one real number, not [2]");
  refuses([&] { loss.update(at::zeros({}), -1); }, "-1 samples");
  refuses([&] { confusion.update(at::zeros({2, 4}), at::zeros({2}, at::kLong)); }, "scores [2, 4] for 3 classes");
  refuses([&] { confusion.update(at::full({2}, 7, at::kLong), at::zeros({2}, at::kLong)); }, "predicted has class 7");
  refuses([&] { confusion.update(at::zeros({1}, at::kLong), at::zeros({2}, at::kLong)); }, "differ in length");
}

TEST(DistributedMetric, InAnotherOrderOnOneRankIsAMismatch) {
  run_ranks(2, [](const Group& group) {
    Accuracy accuracy;
    MeanLoss loss;
    const auto compute = [&](bool loss_first) { return loss_first ? loss.compute(*group) : accuracy.compute(*group); };
    EXPECT_THROW(compute(group->rank() == 0), CallMismatchError);
    EXPECT_THROW(compute(group->rank() == 1), CallMismatchError);
    EXPECT_THROW(group->rank() == 0 ? void(accuracy.compute(*group)) : void(ConfusionMatrix(2).compute(*group)),
                 CallMismatchError);
  });
}

// Fault R43.
TEST(DistributedMetric, LeavesItsArgumentsAlone) {
  run_ranks(2, [](const Group& group) {
    auto scores = at::eye(3), target = at::arange(3);
    Accuracy accuracy;
    accuracy.update(scores, target);
    accuracy.compute(*group);
    EXPECT_TRUE(at::equal(scores, at::eye(3)));
    EXPECT_TRUE(at::equal(target, at::arange(3)));
  });
}

}  // namespace
}  // namespace ddp::testing
