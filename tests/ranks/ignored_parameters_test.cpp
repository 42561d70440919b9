// Parameters and buffers that each rank keeps to itself.

#include <gtest/gtest.h>

#include "ddp/distributed_data_parallel.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

// `own` may have another size on each rank.
struct PersonalImpl : torch::nn::Module {
  explicit PersonalImpl(int rank) {
    own = register_parameter("own", torch::full({2 + rank}, 1.0 + rank));
    shared = register_parameter("shared", torch::full({3}, 1.0 + rank));
    seen = register_buffer("seen", torch::full({1 + rank}, rank));
    count = register_buffer("count", torch::full({}, rank));
  }
  torch::Tensor forward(const torch::Tensor& x) { return (x * shared).sum() + x * own.sum(); }
  torch::Tensor own, shared, seen, count;
};

const DistributedDataParallelOptions kIgnoring{.ignored_parameters = {"own", "seen"}};

TEST(IgnoredParameters, AreNeitherComparedNorCopiedNorAveraged) {
  run_ranks(3, [](const Group& group) {
    const auto rank = group->rank();
    const auto net = std::make_shared<PersonalImpl>(rank);
    DistributedDataParallel model(net, group, kIgnoring);
    EXPECT_TRUE(torch::equal(net->own, torch::full({2 + rank}, 1.0 + rank)));
    EXPECT_TRUE(torch::equal(net->seen, torch::full({1 + rank}, rank)));
    EXPECT_TRUE(torch::equal(net->shared, torch::ones({3})));
    EXPECT_EQ(net->count.item<int>(), 0);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      net->seen.fill_(10 * rank);
      net->count.fill_(10 + rank);
      model(torch::full({}, 1.0 + rank)).backward();
      EXPECT_TRUE(torch::equal(net->own.grad(), torch::full({2 + rank}, 1.0 + rank))) << "this rank's own";
      EXPECT_TRUE(torch::equal(net->shared.grad(), torch::full({3}, 2.0))) << "the mean";
      EXPECT_TRUE(torch::equal(net->seen, torch::full({1 + rank}, 10 * rank)));
      EXPECT_EQ(net->count.item<int>(), 10);
    }
  });
}

TEST(IgnoredParameters, MayGoWithoutAGradient) {
  run_ranks(2, [](const Group& group) {
    struct NetImpl : torch::nn::Module {
      torch::Tensor used = register_parameter("used", torch::ones({2}));
      torch::Tensor idle = register_parameter("idle", torch::ones({2}));
      torch::Tensor forward(const torch::Tensor& x) { return x * used; }
    };
    const auto net = std::make_shared<NetImpl>();
    DistributedDataParallel model(net, group, {.ignored_parameters = {"idle"}});
    model(torch::full({2}, 1.0 + 2 * group->rank())).sum().backward();
    EXPECT_TRUE(torch::equal(net->used.grad(), torch::full({2}, 2.0)));
    EXPECT_FALSE(net->idle.grad().defined());
  });
}

TEST(IgnoredParameters, AreIgnoredUnderAllTheirNames) {
  struct TiedImpl : torch::nn::Module {
    explicit TiedImpl(int rank) { torch::nn::init::constant_(inner->weight, 1.0 + rank); }
    torch::nn::Linear make() { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); }
    torch::nn::Linear inner = register_module("first", make());
    torch::nn::Linear again = register_module("second", inner);
    torch::Tensor shared = register_parameter("shared", torch::ones({1}));
    torch::Tensor forward(const torch::Tensor& x) { return inner(x) * shared; }
  };
  for (const auto* name : {"first.weight", "second.weight"})
    run_ranks(2, [name](const Group& group) {
      const auto net = std::make_shared<TiedImpl>(group->rank());
      DistributedDataParallel model(net, group, {.ignored_parameters = {name}});
      EXPECT_EQ(net->inner->weight.item<double>(), 1.0 + group->rank());
      model(torch::full({1, 1}, 1.0 + group->rank())).sum().backward();
      EXPECT_EQ(net->inner->weight.grad().item<double>(), 1.0 + group->rank());
      EXPECT_EQ(net->shared.grad().item<double>(), 2.5);
    });
}

TEST(IgnoredParameters, OfAnUnknownNameAreAMistakeInWords) {
  run_ranks(2, [](const Group& group) {
    try {
      DistributedDataParallel model(std::make_shared<PersonalImpl>(group->rank()), group,
                                    {.ignored_parameters = {"own", "owm"}});
      ADD_FAILURE() << "no exception";
    } catch (const std::logic_error& error) {
      EXPECT_TRUE(contains(error.what(), "ignored_parameters names owm"));
    }
  });
}

TEST(IgnoredParameters, ThatDifferBetweenRanksAreAModelMismatch) {
  run_ranks(2, [](const Group& group) {
    const std::vector<std::string> names =
        group->rank() == 0 ? std::vector<std::string>{"own"} : kIgnoring.ignored_parameters;
    EXPECT_THROW(DistributedDataParallel(std::make_shared<PersonalImpl>(0), group, {.ignored_parameters = names}),
                 ModelMismatchError);
  });
}

TEST(IgnoredParameters, CanBeAllOfThem) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<PersonalImpl>(group->rank());
    DistributedDataParallel model(net, group, {.ignored_parameters = {"own", "seen", "shared", "count"}});
    EXPECT_EQ(model->bucket_bytes(), 0);
    model(torch::full({}, 1.0)).backward();
    EXPECT_TRUE(torch::equal(net->shared.grad(), torch::ones({3})));
    EXPECT_EQ(net->count.item<int>(), group->rank());
  });
}

}  // namespace
}  // namespace ddp
