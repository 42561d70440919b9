// Every operation x dtype x size x layout, against results computed from every rank's input.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/process_group.hpp"
#include "support/ranks.hpp"

namespace ddp::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

const std::vector<at::ScalarType> kDtypes{at::kBool,  at::kByte,   at::kChar,         at::kShort,
                                          at::kInt,   at::kLong,   at::kHalf,         at::kBFloat16,
                                          at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};

// Small whole numbers, exact in every dtype: rank r's tensor differs from all others' in every element.
at::Tensor values(int rank, at::ScalarType dtype, std::int64_t rows, std::int64_t columns) {
  const auto numbers = at::arange(rows * columns, at::kLong).add(rank + 1).remainder(4).view({rows, columns});
  if (dtype == at::kBool) return numbers.remainder(2).to(at::kBool);
  if (at::isComplexType(dtype)) return at::complex(numbers.to(at::kDouble), numbers.to(at::kDouble) - 1).to(dtype);
  return numbers.to(dtype);
}

enum class Layout { dense, transposed, strided, conjugated };

// The same values in other strides.
at::Tensor laid_out(const at::Tensor& tensor, Layout layout) {
  switch (layout) {
    case Layout::transposed:
      return tensor.t().contiguous().t();
    case Layout::strided: {
      auto wide = at::zeros({tensor.size(0), 2 * tensor.size(1)}, tensor.options());
      auto view = wide.slice(1, 0, 2 * tensor.size(1), 2);
      view.copy_(tensor);
      return view;
    }
    case Layout::conjugated:
      return tensor.is_complex() ? tensor.conj().resolve_conj().conj() : tensor.clone();
    default:
      return tensor.clone();
  }
}

struct Case {
  at::ScalarType dtype;
  std::int64_t rows;
  Layout layout;

  at::Tensor of(int rank, int factor = 1) const { return values(rank, dtype, rows * factor, 3); }
  at::Tensor input(int rank, int factor = 1) const { return laid_out(of(rank, factor), layout); }
  // To be written over.
  at::Tensor blank(int factor = 1) const { return laid_out(at::ones_like(of(0, factor)), layout); }
};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.dtype << " [" << one.rows << ", 3] layout " << static_cast<int>(one.layout);
}

void for_every_case(const std::function<void(const Case&)>& check) {
  for (const auto dtype : kDtypes)
    for (const std::int64_t rows : {0, 1, 5})
      for (const auto layout : {Layout::dense, Layout::transposed, Layout::strided, Layout::conjugated})
        check({dtype, rows, layout});
}

// All layouts with sums, two with the rest: the strides are dealt with before the operation is looked at.
bool is_tried(const Case& one, ReduceOp op) {
  return op == ReduceOp::sum || one.layout == Layout::dense || (one.layout == Layout::strided && one.rows == 5);
}

bool knows(at::ScalarType dtype, ReduceOp op) {
  if (at::isComplexType(dtype)) return op == ReduceOp::sum || op == ReduceOp::avg;
  return op != ReduceOp::avg || at::isFloatingType(dtype);
}

// The reduction of all ranks' values in a wider dtype, on one process.
at::Tensor reduced(const Case& one, int world, ReduceOp op, int factor = 1) {
  const bool complex = at::isComplexType(one.dtype);
  const auto exact = complex ? at::kComplexDouble : at::isFloatingType(one.dtype) ? at::kDouble : at::kLong;
  auto result = one.of(0, factor).to(exact);
  for (int rank = 1; rank < world; ++rank) {
    const auto next = one.of(rank, factor).to(exact);
    if (op == ReduceOp::sum || op == ReduceOp::avg) result = result + next;
    if (op == ReduceOp::product) result = result * next;
    if (op == ReduceOp::min) result = at::minimum(result, next);
    if (op == ReduceOp::max) result = at::maximum(result, next);
  }
  if (op == ReduceOp::avg) result = result / world;
  return one.dtype == at::kBool ? result.ne(0) : result.to(one.dtype);
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && at::allclose(a, b, 1e-3, 0);
}

constexpr std::array kOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};

class Collectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4));

TEST_P(Collectives, ReduceGivesTheRootTheResultAndLeavesTheOthersTensorsAlone) {
  run_ranks(GetParam(), [](const Group& group) {
    const int root = group->size() - 1;
    for_every_case([&](const Case& one) {
      for (const auto op : kOps) {
        if (!knows(one.dtype, op) || !is_tried(one, op)) continue;
        auto tensor = one.input(group->rank());
        group->reduce(tensor, root, op);
        const auto expected = group->rank() == root ? reduced(one, group->size(), op) : one.of(group->rank());
        EXPECT_TRUE(close(tensor, expected)) << one << " op " << static_cast<int>(op);
      }
    });
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsPartAndLeavesTheInputAlone) {
  run_ranks(GetParam(), [](const Group& group) {
    for_every_case([&](const Case& one) {
      for (const auto op : kOps) {
        if (!knows(one.dtype, op) || !is_tried(one, op)) continue;
        const auto input = one.input(group->rank(), group->size());
        auto output = one.blank();
        group->reduce_scatter(output, input, op);
        const auto sums = reduced(one, group->size(), op, group->size());
        EXPECT_TRUE(close(output, sums.narrow(0, group->rank() * one.rows, one.rows))) << one;
        EXPECT_TRUE(at::equal(input, one.of(group->rank(), group->size()))) << one;
      }
    });
  });
}

TEST_P(Collectives, GatherGivesTheRootEveryRanksTensorWhateverItsFirstDimension) {
  run_ranks(GetParam(), [](const Group& group) {
    const int root = group->size() - 1;
    for_every_case([&](const Case& one) {
      const auto all = group->gather(one.input(group->rank(), group->rank() + 1), root);
      ASSERT_EQ(all.size(), group->rank() == root ? static_cast<std::size_t>(group->size()) : 0U);
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const int from = static_cast<int>(rank);
        EXPECT_TRUE(at::equal(all[rank], one.of(from, from + 1))) << one << " of rank " << rank;
      }
    });
  });
}

TEST_P(Collectives, ScatterGivesEachRankItsTensor) {
  run_ranks(GetParam(), [](const Group& group) {
    const int root = group->size() - 1;
    for_every_case([&](const Case& one) {
      std::vector<at::Tensor> inputs;
      for (int rank = 0; rank < group->size() && group->rank() == root; ++rank) inputs.push_back(one.input(rank));
      auto output = one.blank();
      group->scatter(output, inputs, root);
      EXPECT_TRUE(at::equal(output, one.of(group->rank()))) << one;
    });
  });
}

TEST_P(Collectives, AllToAllMovesEqualParts) {
  run_ranks(GetParam(), [](const Group& group) {
    for_every_case([&](const Case& one) {
      const auto input = one.input(group->rank(), group->size());
      auto output = one.blank(group->size());
      group->all_to_all(output, input);
      for (int from = 0; from < group->size(); ++from) {
        const auto sent = one.of(from, group->size()).narrow(0, group->rank() * one.rows, one.rows);
        EXPECT_TRUE(at::equal(output.narrow(0, from * one.rows, one.rows), sent)) << one << " from " << from;
      }
      EXPECT_TRUE(at::equal(input, one.of(group->rank(), group->size()))) << one;
    });
  });
}

TEST_P(Collectives, AllToAllMovesUnequalParts) {
  run_ranks(GetParam(), [](const Group& group) {
    const auto rows = [](int from, int to) { return std::int64_t{from * (to + 1) % 3}; };
    Splits splits;
    std::int64_t sent = 0, taken = 0;
    for (int other = 0; other < group->size(); ++other) {
      sent += splits.input.emplace_back(rows(group->rank(), other));
      taken += splits.output.emplace_back(rows(other, group->rank()));
    }
    for (const auto dtype : kDtypes) {
      auto output = at::zeros({taken, 3}, dtype);
      group->all_to_all(output, values(group->rank(), dtype, sent, 3), splits);
      std::int64_t row = 0;
      for (int from = 0; from < group->size(); ++from) {
        std::int64_t before = 0, all = 0;
        for (int to = 0; to < group->size(); ++to) {
          if (to < group->rank()) before += rows(from, to);
          all += rows(from, to);
        }
        const auto count = rows(from, group->rank());
        const auto expected = values(from, dtype, all, 3).narrow(0, before, count);
        EXPECT_TRUE(at::equal(output.narrow(0, row, count), expected)) << dtype << " from " << from;
        row += count;
      }
    }
  });
}

TEST_P(Collectives, ByteStringsAreGatheredAndScattered) {
  run_ranks(GetParam(), [](const Group& group) {
    const auto text_of = [](int rank) { return std::string(static_cast<std::size_t>(rank) * 5, 'x') + '\0'; };
    for (int root = 0; root < group->size(); ++root) {
      std::vector<std::string> everyones;
      for (int rank = 0; rank < group->size(); ++rank) everyones.push_back(text_of(rank));
      const bool is_root = group->rank() == root;
      EXPECT_EQ(group->gather_bytes(text_of(group->rank()), root), is_root ? everyones : std::vector<std::string>());
      EXPECT_EQ(group->scatter_bytes(is_root ? everyones : std::vector<std::string>(), root), text_of(group->rank()));
      const std::vector<std::string> empty(static_cast<std::size_t>(group->size()));
      EXPECT_EQ(group->gather_bytes("", root), is_root ? empty : std::vector<std::string>());
      EXPECT_EQ(group->scatter_bytes(is_root ? empty : std::vector<std::string>(), root), "");
    }
  });
}

TEST_P(Collectives, BarriersReturn) {
  run_ranks(GetParam(), [](const Group& group) {
    for (int i = 0; i < 3; ++i) {
      group->barrier();
      group->monitored_barrier();
    }
  });
}

TEST(Collectives, AsynchronousCallsOfAllKindsMayBeUnderWayTogether) {
  run_ranks(3, [](const Group& group) {
    const int rank = group->rank();
    for (int round = 0; round < 10; ++round) {
      auto sum = at::full({4}, rank), copy = at::full({2}, rank), reduced = at::full({2}, rank);
      auto part = at::zeros({1, 2}, at::kLong), scattered = at::zeros({2}, at::kLong),
           exchanged = at::zeros({3}, at::kLong);
      std::vector<at::Tensor> all, gathered;
      std::vector<std::string> texts;
      const std::vector<at::Tensor> inputs(rank == 0 ? 3 : 0, at::full({2}, 7));
      std::vector<Work> works;
      works.push_back(group->all_reduce_async(sum));
      works.push_back(group->all_gather_async(all, at::full({rank, 2}, rank)));
      works.push_back(group->broadcast_async(copy, 2));
      works.push_back(group->barrier_async());
      works.push_back(group->reduce_async(reduced, 1));
      works.push_back(group->reduce_scatter_async(part, at::full({3, 2}, rank)));
      works.push_back(group->gather_async(gathered, at::full({1}, rank), 2));
      works.push_back(group->scatter_async(scattered, inputs));
      works.push_back(group->all_to_all_async(exchanged, at::full({3}, rank)));
      works.push_back(group->all_gather_bytes_async(texts, std::string(1, static_cast<char>('a' + rank))));
      for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
      EXPECT_TRUE(at::equal(sum, at::full({4}, 3)));
      EXPECT_TRUE(at::equal(all.at(2), at::full({2, 2}, 2)));
      EXPECT_TRUE(at::equal(copy, at::full({2}, 2)));
      EXPECT_TRUE(at::equal(reduced, at::full({2}, rank == 1 ? 3 : rank)));
      EXPECT_TRUE(at::equal(part, at::full({1, 2}, 3)));
      EXPECT_EQ(gathered.size(), rank == 2 ? 3U : 0U);
      EXPECT_TRUE(at::equal(scattered, at::full({2}, 7)));
      EXPECT_TRUE(at::equal(exchanged, at::arange(3)));
      EXPECT_EQ(texts, (std::vector<std::string>{"a", "b", "c"}));
    }
  });
}

TEST(Collectives, AnAsynchronousCallReturnsBeforeTheOthersMakeIt) {
  const Gate returned;
  run_ranks(2, [&](const Group& group) {
    std::array tensors{at::ones({3}), at::ones({4}), at::ones({5})};
    std::vector<Work> works;
    if (group->rank() == 1) returned.pass();
    for (auto& tensor : tensors) works.push_back(group->all_reduce_async(tensor));
    if (group->rank() == 0) returned.open();
    for (const auto& work : works) work.wait();
    for (const auto& tensor : tensors) EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, 2)));
  });
}

TEST(Collectives, WhatIsNotSupportedIsALogicErrorBeforeAnythingIsSent) {
  run_ranks(2, [](const Group& group) {
    auto integers = at::ones({4}, at::kInt), complex = at::ones({4}, at::kComplexFloat), output = at::ones({2});
    EXPECT_THROW(group->reduce(integers, 0, ReduceOp::avg), std::logic_error);
    EXPECT_THROW(group->reduce(integers, 2), std::logic_error);
    EXPECT_THROW(group->reduce(complex, 0, ReduceOp::max), std::logic_error);
    EXPECT_THROW(group->reduce_scatter(output, at::ones({3})), std::logic_error);
    EXPECT_THROW(group->reduce_scatter(output, at::ones({4}, at::kInt)), std::logic_error);
    EXPECT_THROW(group->gather(integers, -1), std::logic_error);
    EXPECT_THROW(group->scatter(output, {output, output}, 2), std::logic_error);
    if (group->rank() == 0) {
      EXPECT_THROW(group->scatter(output, {output}), std::logic_error);
    }
    EXPECT_THROW(group->all_to_all(output, at::ones({3})), std::logic_error);
    EXPECT_THROW(group->all_to_all(output, at::ones({2}, at::kInt)), std::logic_error);
    EXPECT_THROW(group->all_to_all(output, at::ones({3}), {.input = {1, 1}}), std::logic_error);
    EXPECT_THROW(group->send(output, group->rank()), std::logic_error);
    EXPECT_THROW(group->recv(output, 2), std::logic_error);
    at::Tensor none, sparse = at::zeros({4}).to_sparse();
    EXPECT_THROW(group->all_reduce(none), std::logic_error);
    EXPECT_THROW(group->all_reduce(sparse), std::logic_error);
    EXPECT_THROW(static_cast<void>(group->all_reduce_async(sparse)), std::logic_error);
    group->all_reduce(output);
    EXPECT_TRUE(at::equal(output, at::full({2}, 2.0)));
  });
}

TEST(Collectives, AMonitoredBarrierNamesEveryRankThatDidNotCome) {
  const Gate over;
  run_ranks(4, [&](const Group& group) {
    if (group->rank() == 1 || group->rank() == 3) {
      over.pass();
      return;
    }
    try {
      group->monitored_barrier({.timeout = std::chrono::milliseconds(500)});
      ADD_FAILURE() << "no exception";
    } catch (const TimeoutError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("monitored_barrier #1: ranks 1, 3 did not come within 0.5 s"), std::string::npos) << text;
    } catch (const PeerLostError& error) {
      EXPECT_NE(std::string(error.what()).find("ranks 1, 3 did not come"), std::string::npos) << error.what();
    }
    over.open();
  });
}

}  // namespace
}  // namespace ddp::testing
