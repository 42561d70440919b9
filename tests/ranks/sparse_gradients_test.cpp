// Gradients that have values in a few rows only, against one process on the whole batch.

#include <gtest/gtest.h>

#include <optional>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/log.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

constexpr std::int64_t kRows = 10, kWidth = 3;

// The mean over the tokens of a sample, then a linear layer: [samples, tokens] to [samples, 2].
struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(torch::Dtype dtype = torch::kDouble) {
    torch::manual_seed(5);
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kWidth).sparse(true)));
    linear = register_module("linear", torch::nn::Linear(kWidth, 2));
    to(dtype);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return linear(table(tokens).sum(1)); }
  torch::Tensor sparse() const { return table->weight; }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear linear{nullptr};
};

struct BagOfWordsImpl : torch::nn::Module {
  BagOfWordsImpl() {
    torch::manual_seed(5);
    bag = register_module(
        "bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kRows, kWidth).sparse(true).mode(torch::kSum)));
    linear = register_module("linear", torch::nn::Linear(kWidth, 2));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return linear(bag(tokens)); }
  torch::Tensor sparse() const { return bag->weight; }
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::Linear linear{nullptr};
};

// No dense parameter, so no bucket.
struct TableImpl : torch::nn::Module {
  TableImpl() {
    torch::manual_seed(5);
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kWidth).sparse(true)));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return table(tokens).sum(1).pow(2); }
  torch::Tensor sparse() const { return table->weight; }
  torch::nn::Embedding table{nullptr};
};

// Tokens of all ranks in a step, [ranks, tokens]: other rows and other numbers of rows on each rank, some twice.
at::Tensor tokens_of(int step, int ranks) {
  static const std::vector<std::vector<std::int64_t>> kLists{{1, 1, 1, 1, 1}, {0, 2, 4, 6, 8}, {9, 9, 3, 3, 1},
                                                             {5, 4, 5, 4, 5}, {7, 0, 7, 2, 9}, {6, 6, 6, 6, 8}};
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < ranks; ++rank)
    rows.push_back(at::tensor(kLists[static_cast<std::size_t>(step * 2 + rank) % kLists.size()], at::kLong));
  return at::stack(rows);
}

void expect_sparse_and_same(ProcessGroup& group, const at::Tensor& gradient) {
  ASSERT_TRUE(gradient.defined());
  ASSERT_TRUE(gradient.is_sparse());
  ASSERT_TRUE(gradient.is_coalesced());
  EXPECT_TRUE(same_on_all_ranks(group, gradient.indices().contiguous()));
  EXPECT_TRUE(same_on_all_ranks(group, gradient.values()));
}

// What SparseAdam does: only the rows of the gradient move, with moments of their own. Keeps the moments of one table.
class LazyAdam {
 public:
  explicit LazyAdam(at::Tensor table) : table_(std::move(table)) {}

  void step() {
    const at::NoGradGuard no_grad;
    const auto gradient = table_.grad().coalesce();
    const auto rows = gradient.indices()[0];
    const auto mean = mean_.index_select(0, rows) * 0.9 + gradient.values() * 0.1;
    const auto square = square_.index_select(0, rows) * 0.99 + gradient.values().pow(2) * 0.01;
    mean_.index_copy_(0, rows, mean);
    square_.index_copy_(0, rows, square);
    table_.index_add_(0, rows, mean / (square.sqrt() + 1e-8), -0.01);
  }

 private:
  at::Tensor table_;
  at::Tensor mean_ = at::zeros_like(table_), square_ = at::zeros_like(table_);
};

template <class Net>
void expect_equal_to_one_process(int ranks, const DistributedDataParallelOptions& options, bool lazy_adam) {
  run_ranks(ranks, [&](const Group& group) {
    const auto net = std::make_shared<Net>();
    Net reference;
    DistributedDataParallel model(net, group, options);
    torch::optim::SGD sgd(net->parameters(), 0.1), reference_sgd(reference.parameters(), 0.1);
    LazyAdam adam(net->sparse()), reference_adam(reference.sparse());
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      reference_sgd.zero_grad();
      const auto tokens = tokens_of(step, ranks);
      model(tokens[group->rank()].unsqueeze(0)).pow(2).mean().backward();
      reference.forward(tokens).pow(2).mean().backward();
      expect_sparse_and_same(*group, net->sparse().grad());
      EXPECT_TRUE(close(net->sparse().grad().to_dense(), reference.sparse().grad().to_dense(), 1e-10));
      EXPECT_EQ(net->sparse().grad()._nnz(), reference.sparse().grad().coalesce()._nnz()) << "rows that nobody used";
      if (lazy_adam) {
        adam.step();
        reference_adam.step();
      } else {
        sgd.step();
        reference_sgd.step();
      }
    }
    for (const auto& entry : net->named_parameters()) {
      EXPECT_TRUE(close(entry.value(), reference.named_parameters()[entry.key()], 1e-10)) << entry.key();
      EXPECT_TRUE(same_on_all_ranks(*group, entry.value())) << entry.key();
    }
  });
}

class SparseGradientsOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SparseGradientsOnRanks, ::testing::Values(2, 3),
                         [](const auto& world) { return "Of" + std::to_string(world.param); });

TEST_P(SparseGradientsOnRanks, OfAnEmbeddingEqualOneProcess) {  // R34
  expect_equal_to_one_process<WordsImpl>(GetParam(), {}, false);
  expect_equal_to_one_process<WordsImpl>(GetParam(), {.gradient_as_bucket_view = false}, false);
  expect_equal_to_one_process<WordsImpl>(GetParam(), {}, true);
}

TEST_P(SparseGradientsOnRanks, OfAnEmbeddingBagEqualOneProcess) {  // R34
  expect_equal_to_one_process<BagOfWordsImpl>(GetParam(), {}, false);
  expect_equal_to_one_process<BagOfWordsImpl>(GetParam(), {}, true);
}

TEST_P(SparseGradientsOnRanks, OfAModuleWithoutDenseParametersEqualOneProcess) {
  expect_equal_to_one_process<TableImpl>(GetParam(), {}, false);
}

TEST_P(SparseGradientsOnRanks, TravelBesideACommunicationHook) {
  expect_equal_to_one_process<TableImpl>(GetParam(), {.comm_hook = fp16_compression()}, false);
}

TEST_P(SparseGradientsOnRanks, OfASubsetOfRanksOrOfNoneAreRight) {
  run_ranks(GetParam(), [](const Group& group) {
    const auto net = std::make_shared<WordsImpl>();
    WordsImpl reference;
    DistributedDataParallel model(net, group);
    const auto ranks = group->size();
    for (const int ranks_with_tokens : {1, 0, 1}) {
      net->zero_grad();
      reference.zero_grad();
      const auto empty = at::empty({1, 0}, at::kLong);
      const auto of = [&](int rank) { return rank < ranks_with_tokens ? tokens_of(rank, 1) : empty; };
      model(of(group->rank())).sum().backward();
      for (int rank = 0; rank < ranks; ++rank) (reference.forward(of(rank)).sum() / ranks).backward();
      expect_sparse_and_same(*group, net->sparse().grad());
      EXPECT_EQ(net->sparse().grad()._nnz(), reference.sparse().grad().coalesce()._nnz());
      EXPECT_TRUE(close(net->sparse().grad().to_dense(), reference.sparse().grad().to_dense(), 1e-10));
      EXPECT_TRUE(close(net->linear->bias.grad(), reference.linear->bias.grad(), 1e-10));
    }
  });
}

TEST(SparseGradients, AccumulateUnderNoSync) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<WordsImpl>();
    WordsImpl reference;
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      reference.zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<NoSync> guard;
        if (micro < 2) guard.emplace(model->no_sync());
        const auto tokens = tokens_of(step + micro, 2);
        model(tokens[group->rank()].unsqueeze(0)).mean().backward();
        reference.forward(tokens).mean().backward();
      }
      expect_sparse_and_same(*group, net->sparse().grad());
      EXPECT_TRUE(close(net->sparse().grad().to_dense(), reference.sparse().grad().to_dense(), 1e-10));
    }
  });
}

TEST(SparseGradients, AccumulateOverReducedBackwards) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<WordsImpl>();
    WordsImpl reference;
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 3; ++step) {
      const auto tokens = tokens_of(step, 2);
      model(tokens[group->rank()].unsqueeze(0)).mean().backward();
      reference.forward(tokens).mean().backward();
      expect_sparse_and_same(*group, net->sparse().grad());
      EXPECT_TRUE(close(net->sparse().grad().to_dense(), reference.sparse().grad().to_dense(), 1e-10));
    }
  });
}

// Its output is the table again, so that the table's gradient is the sum of a sparse and a dense one.
struct TiedWordsImpl : torch::nn::Module {
  TiedWordsImpl() {
    torch::manual_seed(5);
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kWidth).sparse(true)));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& tokens, bool reads_out) {
    const auto hidden = table(tokens).sum(1);
    return reads_out ? hidden.matmul(table->weight.t()) : hidden;
  }
  torch::nn::Embedding table{nullptr};
};

TEST(SparseGradients, OfATableThatIsUsedDenselyTooAreSummed) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<TiedWordsImpl>();
    TiedWordsImpl reference;
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      reference.zero_grad();
      const auto tokens = tokens_of(step, 2);
      // Densely on both ranks, on rank 1 alone, on none.
      const auto reads_out = [&](int rank) { return step == 0 || (step == 1 && rank == 1); };
      const auto of = [&](int rank) { return tokens[rank].unsqueeze(0); };
      model(of(group->rank()), reads_out(group->rank())).pow(2).mean().backward();
      for (int rank = 0; rank < 2; ++rank) (reference.forward(of(rank), reads_out(rank)).pow(2).mean() / 2).backward();
      expect_sparse_and_same(*group, net->table->weight.grad());
      EXPECT_TRUE(close(net->table->weight.grad().to_dense(), reference.table->weight.grad().to_dense(), 1e-10));
    }
  });
}

// Looks up by a function, so that no module tells of the sparse gradient.
struct LookupImpl : torch::nn::Module {
  torch::Tensor table = register_parameter("table", torch::ones({kRows, kWidth}, torch::kDouble));
  torch::Tensor scale = register_parameter("scale", torch::ones({kWidth}, torch::kDouble));
  torch::Tensor forward(const torch::Tensor& tokens) {
    return at::embedding(table, tokens, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true) * scale;
  }
};

TEST(SparseGradients, ThatNoModuleAnnouncesAreAveragedAsDenseOnesWithOneWarning) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    const auto group = init_process_group({.environment = environment});
    for (const bool views : {true, false}) {
      const auto net = std::make_shared<LookupImpl>();
      LookupImpl reference;
      DistributedDataParallel model(net, group, {.gradient_as_bucket_view = views});
      for (int step = 0; step < 3; ++step) {
        if (step < 2) net->zero_grad();
        if (step < 2) reference.zero_grad();
        const auto tokens = tokens_of(step, 2);
        model(tokens[group->rank()]).sum().backward();
        (reference.forward(tokens).sum() / 2).backward();
        EXPECT_FALSE(net->table.grad().is_sparse());
        EXPECT_TRUE(close(net->table.grad(), reference.table.grad().to_dense(), 1e-10));
        EXPECT_TRUE(same_on_all_ranks(*group, net->table.grad()));
      }
    }
    group->shutdown();
  });
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    const std::string warning = "the gradient of table is sparse, which its module does not announce";
    int warnings = 0;
    for (auto at = outcome.output.find(warning); at != std::string::npos; at = outcome.output.find(warning, at + 1))
      ++warnings;
    EXPECT_EQ(warnings, outcome.rank == 0 ? 2 : 0) << "once for each of the two wrappers\n" << outcome.output;
  }
}

TEST(SparseGradients, AreKeptWhereSparseParametersNameThem) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<LookupImpl>();
    LookupImpl reference;
    DistributedDataParallel model(net, group, {.sparse_parameters = {"table"}});
    const auto tokens = tokens_of(0, 2);
    model(tokens[group->rank()]).sum().backward();
    (reference.forward(tokens).sum() / 2).backward();
    expect_sparse_and_same(*group, net->table.grad());
    EXPECT_TRUE(close(net->table.grad().to_dense(), reference.table.grad().to_dense(), 1e-10));
    EXPECT_THROW(DistributedDataParallel(std::make_shared<LookupImpl>(), group, {.sparse_parameters = {"tabel"}}),
                 std::logic_error);
  });
}

TEST(SparseGradients, OnSomeRanksOnlyAreAModelMismatch) {
  run_ranks(3, [](const Group& group) {
    const auto is_sparse = group->rank() != 2;
    torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kWidth).sparse(is_sparse)));
    try {
      DistributedDataParallel model(net, group);
      ADD_FAILURE() << "no exception";
    } catch (const ModelMismatchError& error) {
      EXPECT_TRUE(contains(error.what(), "sparse gradients of 0.weight"));
    }
  });
}

TEST(SparseGradients, OfATableThatNobodyUsedStayAsTheyWere) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kWidth).sparse(true)));
      linear = register_module("linear", torch::nn::Linear(kWidth, 2));
    }
    torch::Tensor forward(const torch::Tensor& tokens, bool looks_up) {
      return linear(looks_up ? table(tokens).sum(0) : torch::ones({kWidth}));
    }
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear linear{nullptr};
  };
  run_ranks(2, [](const Group& group) {
    for (const bool views : {true, false}) {
      const auto net = std::make_shared<NetImpl>();
      DistributedDataParallel model(net, group, {.gradient_as_bucket_view = views, .find_unused_parameters = true});
      const auto tokens = tokens_of(0, 2)[group->rank()];
      model(tokens, false).sum().backward();
      EXPECT_FALSE(net->table->weight.grad().defined());
      net->zero_grad();
      model(tokens, group->rank() == 1).sum().backward();  // one rank uses it
      expect_sparse_and_same(*group, net->table->weight.grad());
      const auto before = net->table->weight.grad().to_dense().clone();
      EXPECT_EQ(net->table->weight.grad()._nnz(), 5);
      model(tokens, false).sum().backward();  // nobody does, and nothing was zeroed
      expect_sparse_and_same(*group, net->table->weight.grad());
      EXPECT_TRUE(torch::equal(net->table->weight.grad().to_dense(), before));
    }
  });
}

TEST(SparseGradients, OfHalfAndBfloat16KeepTheirDtype) {
  run_ranks(2, [](const Group& group) {
    for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
      const auto table = std::make_shared<LookupImpl>();
      table->to(dtype);
      DistributedDataParallel model(table, group, {.sparse_parameters = {"table"}});
      model(at::tensor({1, 1, 2 + group->rank()}, at::kLong)).sum().backward();
      expect_sparse_and_same(*group, table->table.grad());
      EXPECT_EQ(table->table.grad().scalar_type(), dtype);
      auto expected = at::zeros({kRows, kWidth}, dtype);
      expected[1].fill_(2);
      expected[2].fill_(0.5);
      expected[3].fill_(0.5);
      EXPECT_TRUE(torch::equal(table->table.grad().to_dense(), expected)) << dtype;
    }
  });
}

TEST(SparseGradients, CountBySamples) {
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<WordsImpl>();
    WordsImpl reference;
    DistributedDataParallel model(net, group, {.weight_by_samples = true});
    for (const auto& samples : std::vector<std::vector<std::int64_t>>{{3, 1}, {1, 3}, {0, 2}}) {
      net->zero_grad();
      reference.zero_grad();
      const auto tokens = at::cat({tokens_of(0, 2), tokens_of(1, 2)})
                              .split_with_sizes({samples[0], samples[1], 4 - samples[0] - samples[1]});
      model->set_samples(samples[static_cast<std::size_t>(group->rank())]);
      model(tokens[static_cast<std::size_t>(group->rank())]).pow(2).mean().backward();  // NaN over no samples
      reference.forward(at::cat({tokens[0], tokens[1]})).pow(2).mean().backward();
      expect_sparse_and_same(*group, net->sparse().grad());
      EXPECT_TRUE(close(net->sparse().grad().to_dense(), reference.sparse().grad().to_dense(), 1e-10));
      EXPECT_TRUE(close(net->linear->weight.grad(), reference.linear->weight.grad(), 1e-10));
    }
  });
}

}  // namespace
}  // namespace ddp
