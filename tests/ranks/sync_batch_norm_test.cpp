// Batch norm over all ranks is batch norm on the whole batch, as a module of its own and as a converted BatchNorm.

#include "ddp/sync_batch_norm.hpp"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;
using torch::nn::BatchNormOptions;
using Rows = std::vector<std::int64_t>;

constexpr std::int64_t kChannels = 3;

torch::Tensor part_of(const torch::Tensor& whole, const Rows& rows, int rank) {
  return whole.split_with_sizes(rows)[static_cast<std::size_t>(rank)];
}

/// Three steps of `norm` on this rank's rows and of BatchNorm on all of them, in float64: outputs, gradients and
/// buffers are equal, and the buffers the same bits on all ranks.
template <class Norm, class Whole>
void expect_norm_of_whole_batch(ProcessGroup& group, Norm& norm, Whole& whole, const Rows& rows,
                                std::vector<std::int64_t> sizes) {
  norm->to(torch::kDouble);
  whole->to(torch::kDouble);
  for (const auto& entry : whole->named_parameters()) {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(17);
    entry.value().uniform_(0.5, 2);
    norm->named_parameters()[entry.key()].copy_(entry.value());
  }
  sizes.insert(sizes.begin(), std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step));
    const auto all = (torch::randn(sizes, torch::kDouble) * 3 + step).requires_grad_();
    const auto factors = torch::randn(sizes, torch::kDouble);
    const auto own = part_of(all.detach(), rows, group.rank()).clone().requires_grad_();
    norm->zero_grad();
    whole->zero_grad();
    const auto expected = whole->forward(all), output = norm->forward(own);
    (expected.sin() * factors).sum().backward();
    (output.sin() * part_of(factors, rows, group.rank())).sum().backward();

    EXPECT_TRUE(close(output, part_of(expected, rows, group.rank()), 1e-11)) << "step " << step;
    EXPECT_TRUE(close(own.grad(), part_of(all.grad(), rows, group.rank()), 1e-11)) << "step " << step;
    for (const auto& entry : whole->named_parameters()) {
      auto sum = norm->named_parameters()[entry.key()].grad().clone();
      group.all_reduce(sum);
      EXPECT_TRUE(close(sum, entry.value().grad(), 1e-11)) << entry.key() << " step " << step;
    }
    ASSERT_EQ(norm->named_buffers().keys(), whole->named_buffers().keys());
    for (const auto& entry : whole->named_buffers()) {
      const auto own_buffer = norm->named_buffers()[entry.key()];
      EXPECT_TRUE(close(own_buffer, entry.value(), 1e-11)) << entry.key() << " step " << step;
      EXPECT_TRUE(same_on_all_ranks(group, own_buffer)) << entry.key() << " step " << step;
    }
  }
  const torch::NoGradGuard no_grad;
  norm->eval();
  whole->eval();
  const auto input = torch::randn(sizes, torch::kDouble);
  EXPECT_TRUE(close(norm->forward(input), whole->forward(input), 1e-11)) << "in eval mode";
}

/// For 1 to 3 ranks with uneven batches, one of them empty.
template <class Check>
void with_uneven_batches(const Check& check) {
  for (const auto& rows : {Rows{5}, Rows{4, 2}, Rows{0, 3}, Rows{3, 0, 4}, Rows{2, 2, 2}})
    run_ranks(static_cast<int>(rows.size()), [&](const Group& group) { check(group, rows); });
}

TEST(SyncBatchNorm, IsBatchNormOnTheWholeBatch) {
  with_uneven_batches([](const Group& group, const Rows& rows) {
    SyncBatchNorm flat(BatchNormOptions(kChannels), group), image(BatchNormOptions(kChannels).eps(1e-3), group);
    torch::nn::BatchNorm1d whole(kChannels);
    torch::nn::BatchNorm2d whole_image(BatchNormOptions(kChannels).eps(1e-3));
    expect_norm_of_whole_batch(*group, flat, whole, rows, {kChannels});
    expect_norm_of_whole_batch(*group, image, whole_image, rows, {kChannels, 2, 5});
  });
}

TEST(SyncBatchNorm, KnowsTheOptionsOfBatchNorm) {
  with_uneven_batches([](const Group& group, const Rows& rows) {
    for (const auto& options :
         {BatchNormOptions(kChannels).momentum(std::nullopt), BatchNormOptions(kChannels).affine(false),
          BatchNormOptions(kChannels).momentum(0.7).track_running_stats(false)}) {
      SyncBatchNorm norm(options, group);
      torch::nn::BatchNorm1d whole(options), converted(options);
      if (options.track_running_stats()) {
        expect_norm_of_whole_batch(*group, norm, whole, rows, {kChannels, 4});
        whole = torch::nn::BatchNorm1d(options);
      }
      EXPECT_EQ(convert_sync_batchnorm(converted, group), 1);
      expect_norm_of_whole_batch(*group, converted, whole, rows, {kChannels, 4});
    }
  });
}

TEST(SyncBatchNorm, HasTheNamesOfBatchNormSoThatFilesGoBothWays) {
  run_ranks(2, [](const Group& group) {
    const auto reloaded = [](const auto& from, auto to) {
      std::stringstream file;
      torch::save(from, file);
      torch::load(to, file);
      for (const auto& entry : from->named_buffers())
        EXPECT_TRUE(torch::equal(to->named_buffers()[entry.key()], entry.value())) << entry.key();
      EXPECT_TRUE(torch::equal(to->weight, from->weight));
    };
    SyncBatchNorm norm(BatchNormOptions(kChannels), group);
    torch::nn::BatchNorm2d plain(kChannels);
    norm->forward(torch::randn({4, kChannels}));
    plain->forward(torch::randn({4, kChannels, 2, 2}));
    reloaded(norm, torch::nn::BatchNorm2d(kChannels));
    reloaded(plain, norm);
  });
}

TEST(SyncBatchNorm, SaysNothingToOtherRanksInEvalMode) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), group);
    torch::nn::BatchNorm1d converted(kChannels), untracked(BatchNormOptions(kChannels).track_running_stats(false)),
        plain(kChannels);
    convert_sync_batchnorm(converted, group);
    convert_sync_batchnorm(untracked, group);
    const auto x = torch::randn({4, kChannels});
    if (group->rank() == 1) return;  // without a word: a call of rank 0 alone would be an error
    plain->eval();
    norm->eval();
    converted->eval();
    untracked->eval();
    EXPECT_TRUE(torch::equal(norm->forward(x), plain->forward(x)));
    EXPECT_TRUE(torch::equal(converted->forward(x), plain->forward(x)));
    EXPECT_TRUE(close(untracked->forward(x).mean(0), torch::zeros(kChannels), 1e-6));
  });
}

TEST(SyncBatchNorm, TakesABatchOfOneValueARankAndRefusesOneOfAllRanks) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(1), group);
    const auto output = norm->forward(torch::full({1, 1}, 5.0 + 2 * group->rank(), torch::kDouble));
    EXPECT_NEAR(output.item<double>(), group->rank() == 0 ? -1 : 1, 1e-5);
    EXPECT_NEAR(norm->running_var.item<float>(), 0.9 + 0.1 * 2, 1e-6);
    const auto before = norm->running_mean.clone();
    const auto refused = [&](std::int64_t rows) {
      return text_of<std::logic_error>([&] { norm->forward(torch::ones({rows, 1})); });
    };
    EXPECT_TRUE(contains(refused(group->rank()), "needs more than one value a channel"));
    EXPECT_EQ(norm->forward(torch::ones({0, 1})).numel(), 0);  // no rank has any
    EXPECT_TRUE(torch::equal(norm->running_mean, before));
  });
}

TEST(SyncBatchNorm, RefusesAnInputOfAnotherShape) {
  run_ranks(1, [](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), group);
    EXPECT_EQ(text_of<std::logic_error>([&] { norm->forward(torch::ones({2, 4})); }),
              "ddp: SyncBatchNorm expects [batch, 3, ...], not [2, 4]");
    EXPECT_TRUE(contains(text_of<std::logic_error>([&] { norm->forward(torch::ones({3})); }), "not [3]"));
    EXPECT_TRUE(contains(text_of<std::logic_error>([] { SyncBatchNorm(BatchNormOptions(kChannels), nullptr); }),
                         "needs a process group"));
  });
}

TEST(SyncBatchNorm, LosesNothingWhereMeansAreLarge) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), group);
    torch::manual_seed(1);
    const auto all = torch::randn({64, kChannels}) + 1000;
    torch::nn::BatchNorm1d whole(kChannels);
    whole->to(torch::kDouble);
    const auto expected = whole->forward(all.to(torch::kDouble));
    const auto output = norm->forward(part_of(all, {20, 44}, group->rank()));
    EXPECT_TRUE(close(output, part_of(expected, {20, 44}, group->rank()).to(torch::kFloat), 1e-3));
    EXPECT_TRUE(close(norm->running_var, whole->running_var.to(torch::kFloat), 1e-5));
  });
}

TEST(SyncBatchNorm, ComputesHalfTypesInFloat32) {
  run_ranks(2, [](const Group& group) {
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      torch::nn::BatchNorm2d norm(kChannels), whole(kChannels);
      convert_sync_batchnorm(norm, group);
      whole->to(torch::kDouble);
      torch::manual_seed(2);
      const auto all = (torch::randn({6, kChannels, 4, 4}) + 3).to(dtype);
      const auto own = part_of(all, {2, 4}, group->rank()).clone().requires_grad_();
      const auto reference = all.to(torch::kDouble).requires_grad_();
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const auto output = norm->forward(own);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      const auto expected = whole->forward(reference);
      output.to(torch::kFloat).pow(3).sum().backward();
      expected.pow(3).sum().backward();
      EXPECT_EQ(output.scalar_type(), dtype);
      EXPECT_EQ(own.grad().scalar_type(), dtype);
      EXPECT_EQ(norm->weight.grad().scalar_type(), torch::kFloat);
      const auto rows = [&](const torch::Tensor& tensor) { return part_of(tensor, {2, 4}, group->rank()); };
      EXPECT_TRUE(close(output.to(torch::kDouble), rows(expected), 2e-2));
      EXPECT_TRUE(close(own.grad().to(torch::kDouble), rows(reference.grad()), 1e-1));
      EXPECT_TRUE(close(norm->running_mean.to(torch::kDouble), whole->running_mean, 1e-6));
      EXPECT_TRUE(same_on_all_ranks(*group, norm->running_mean));
    }
  });
}

TEST(SyncBatchNorm, RefusesNumbersThatBatchNormRefuses) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(2), group);
    for (const auto dtype : {torch::kLong, torch::kComplexFloat})
      EXPECT_THROW(norm(torch::ones({4, 2}, dtype)), std::logic_error) << dtype;
  });
}

TEST(SyncBatchNorm, NamesRanksWhoseInputsOrChannelsDiffer) {
  run_ranks(3, [](const Group& group) {
    const auto is_last = group->rank() == 2;
    SyncBatchNorm norm(BatchNormOptions(2), group), other(BatchNormOptions(is_last ? 3 : 2), group);
    const auto text_of = [&](auto& layer, const torch::Tensor& input) {
      return error_of<std::logic_error>([&] { layer(input); });
    };
    expect_contains(text_of(norm, torch::ones({4, 2}).requires_grad_(!is_last)),
                    {"requires a gradient on some ranks only", "on rank 0 and on rank 2"});
    expect_contains(text_of(other, torch::ones({4, is_last ? 3 : 2})),
                    {"has 2 and 3 channels on rank 0 and on rank 2"});
    EXPECT_TRUE(norm(torch::ones({4, 2})).defined());
  });
}

TEST(SyncBatchNorm, TakesAnyMemoryFormat) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), group);
    torch::manual_seed(3 + group->rank());
    const auto x = torch::randn({2, kChannels, 4, 6});
    const auto expected = norm->forward(x);
    EXPECT_TRUE(close(norm->forward(x.to(torch::MemoryFormat::ChannelsLast)), expected, 1e-5));
    EXPECT_TRUE(close(norm->forward(x.transpose(2, 3).contiguous().transpose(2, 3)), expected, 1e-5));
  });
}

TEST(SyncBatchNorm, RefusesASecondDerivative) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), group);
    const auto x = torch::randn({4, kChannels}).requires_grad_();
    const auto loss = norm->forward(x).pow(3).sum();
    const auto gradient = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
    EXPECT_TRUE(contains(text_of<std::logic_error>([&] { gradient.pow(2).sum().backward(); }), "second derivative"));
  });
}

TEST(SyncBatchNorm, IsCollectiveToMakeForTheFirstOfAGroupOnly) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm first(BatchNormOptions(kChannels), group);
    if (group->rank() == 1) return;
    EXPECT_NO_THROW(SyncBatchNorm(BatchNormOptions(kChannels), group));
  });
}

}  // namespace
}  // namespace ddp
