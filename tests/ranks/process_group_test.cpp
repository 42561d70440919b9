// Collectives of several ranks, against results computed from every rank's input.
#include "ddp/process_group.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <thread>

#include "support/ranks.hpp"

namespace ddp::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Input of one rank, the same wherever it is computed. Small whole numbers: exact in every dtype.
at::Tensor input_of(int rank, at::ScalarType dtype, at::IntArrayRef sizes) {
  auto values = at::arange(1, c10::multiply_integers(sizes) + 1, at::kLong).mul(rank + 2).remainder(5).add(rank % 2);
  if (dtype == at::kBool) return values.remainder(2).to(at::kBool).view(sizes);
  if (at::isComplexType(dtype))
    return at::complex(values.to(at::kDouble), values.to(at::kDouble) + 1).to(dtype).view(sizes);
  return values.to(dtype).view(sizes);
}

// Four layouts of the same values, so that a tensor's strides are seen not to matter.
const std::vector<std::string> kLayouts{"contiguous", "transposed", "every second", "single"};

at::Tensor laid_out(const at::Tensor& values, const std::string& layout) {
  if (layout == "transposed") return values.t().contiguous().t();
  if (layout == "every second") {
    auto wide = at::zeros({values.size(0), 2 * values.size(1)}, values.options());
    auto view = wide.slice(1, 0, 2 * values.size(1), 2);
    view.copy_(values);
    return view;
  }
  return values.clone();
}

at::IntArrayRef sizes_for(const std::string& layout) {
  static const std::vector<std::int64_t> scalar{1, 1}, matrix{3, 4};
  return layout == "single" ? scalar : matrix;
}

at::Tensor reduced(ReduceOp op, int world, at::ScalarType dtype, at::IntArrayRef sizes) {
  const bool complex = at::isComplexType(dtype);
  const auto exact = complex ? at::kComplexDouble : at::isFloatingType(dtype) ? at::kDouble : at::kLong;
  auto result = input_of(0, dtype, sizes).to(exact);
  for (int rank = 1; rank < world; ++rank) {
    const auto next = input_of(rank, dtype, sizes).to(exact);
    if (op == ReduceOp::sum || op == ReduceOp::avg) result = result + next;
    if (op == ReduceOp::product) result = result * next;
    if (op == ReduceOp::min) result = at::minimum(result, next);
    if (op == ReduceOp::max) result = at::maximum(result, next);
  }
  if (op == ReduceOp::avg) result = result / world;
  if (dtype == at::kBool) result = result.ne(0);
  return result;
}

struct Reduction {
  at::ScalarType dtype;
  std::vector<ReduceOp> ops;
};

const std::vector<ReduceOp> kExactOps{ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product};
const std::vector<ReduceOp> kAllOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};
const std::vector<Reduction> kReductions{
    {at::kFloat, kAllOps},
    {at::kDouble, kAllOps},
    {at::kHalf, kAllOps},
    {at::kBFloat16, kAllOps},
    {at::kChar, kExactOps},
    {at::kByte, kExactOps},
    {at::kShort, kExactOps},
    {at::kInt, kExactOps},
    {at::kLong, kExactOps},
    {at::kBool, kExactOps},
    {at::kComplexFloat, {ReduceOp::sum, ReduceOp::avg}},
    {at::kComplexDouble, {ReduceOp::sum, ReduceOp::avg}},
};

void expect_reduction(ProcessGroup& group, at::ScalarType dtype, ReduceOp op, const std::string& layout) {
  const auto sizes = sizes_for(layout);
  auto tensor = laid_out(input_of(group.rank(), dtype, sizes), layout);
  group.all_reduce(tensor, op);
  const auto expected = reduced(op, group.size(), dtype, sizes).to(dtype);
  EXPECT_TRUE(at::allclose(tensor, expected, 1e-3, 0)) << dtype << ' ' << static_cast<int>(op) << ' ' << layout << '\n'
                                                       << tensor << "\nexpected\n"
                                                       << expected;
}

class ProcessGroupWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ProcessGroupWorlds, ::testing::Values(1, 2, 3, 4));

TEST_P(ProcessGroupWorlds, AllReduceIsRightForEveryDtypeOperationAndLayout) {
  run_ranks(GetParam(), [](const Group& group) {
    for (const auto& [dtype, ops] : kReductions)
      for (const auto op : ops)
        for (const auto& layout : kLayouts) expect_reduction(*group, dtype, op, layout);
  });
}

TEST_P(ProcessGroupWorlds, BroadcastCopiesEveryDtypeAndLayoutFromEveryRoot) {
  run_ranks(GetParam(), [](const Group& group) {
    for (const auto& reduction : kReductions) {
      for (const auto& layout : kLayouts) {
        for (int root = 0; root < group->size(); ++root) {
          auto tensor = laid_out(input_of(group->rank(), reduction.dtype, sizes_for(layout)), layout);
          group->broadcast(tensor, root);
          EXPECT_TRUE(at::equal(tensor, input_of(root, reduction.dtype, sizes_for(layout))))
              << reduction.dtype << ' ' << layout << " from " << root;
        }
      }
    }
  });
}

TEST_P(ProcessGroupWorlds, AllGatherReturnsEveryRanksTensorWhateverItsFirstDimension) {
  run_ranks(GetParam(), [](const Group& group) {
    for (const auto& reduction : kReductions) {
      for (const std::int64_t first : {0, 1, 2}) {  // rank r has first * r rows: none on rank 0, none at all for 0
        const auto rows = [&](int rank) { return std::vector<std::int64_t>{first * rank, 3}; };
        const auto all = group->all_gather(input_of(group->rank(), reduction.dtype, rows(group->rank())));
        ASSERT_EQ(all.size(), static_cast<std::size_t>(group->size()));
        for (int rank = 0; rank < group->size(); ++rank)
          EXPECT_TRUE(at::equal(all[static_cast<std::size_t>(rank)], input_of(rank, reduction.dtype, rows(rank))))
              << reduction.dtype << " of rank " << rank;
      }
    }
  });
}

TEST_P(ProcessGroupWorlds, AllGatherTakesScalarsAndStridedTensors) {
  run_ranks(GetParam(), [](const Group& group) {
    const auto scalars = group->all_gather(at::scalar_tensor(group->rank() + 0.5));
    const auto strided = group->all_gather(laid_out(input_of(group->rank(), at::kInt, {3, 4}), "every second"));
    for (int rank = 0; rank < group->size(); ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      EXPECT_EQ(scalars[i].dim(), 0);
      EXPECT_EQ(scalars[i].item<float>(), static_cast<float>(rank) + 0.5F);
      EXPECT_TRUE(at::equal(strided[i], input_of(rank, at::kInt, {3, 4})));
    }
  });
}

TEST_P(ProcessGroupWorlds, ByteStringsOfAnyLengthAreMoved) {
  run_ranks(GetParam(), [](const Group& group) {
    const auto text_of = [](int rank) {
      return std::string(static_cast<std::size_t>(rank) * 3, 'a') + std::string(rank % 2, '\0');
    };
    const auto all = group->all_gather_bytes(text_of(group->rank()));
    for (int rank = 0; rank < group->size(); ++rank) EXPECT_EQ(all.at(static_cast<std::size_t>(rank)), text_of(rank));
    EXPECT_EQ(group->all_gather_bytes(""), std::vector<std::string>(static_cast<std::size_t>(group->size())));
    for (int root = 0; root < group->size(); ++root)
      EXPECT_EQ(group->broadcast_bytes(text_of(group->rank()), root), text_of(root));
    EXPECT_EQ(group->broadcast_bytes(group->rank() == 0 ? "" : "x"), "");
  });
}

TEST_P(ProcessGroupWorlds, HalfTypesAreSummedInFloatAndRoundedOnce) {
  run_ranks(GetParam(), [](const Group& group) {
    for (const auto dtype : {at::kHalf, at::kBFloat16}) {
      auto tensor = at::full({5}, 0.1, at::kFloat).mul(group->rank() + 1).to(dtype);
      auto sum = at::zeros({5}, at::kFloat);
      for (int rank = 0; rank < group->size(); ++rank)
        sum += at::full({5}, 0.1, at::kFloat).mul(rank + 1).to(dtype).to(at::kFloat);
      group->all_reduce(tensor, ReduceOp::avg);
      EXPECT_TRUE(at::equal(tensor, sum.mul(1.0 / group->size()).to(dtype))) << dtype;
    }
  });
}

TEST(ProcessGroup, TensorsWithoutElementsNeedNoCommunicationButAreNumbered) {
  run_ranks(2, [](const Group& group) {
    auto none = at::empty({0, 3});
    group->all_reduce(none);
    group->broadcast(none);
    EXPECT_EQ(none.sizes(), (std::vector<std::int64_t>{0, 3}));
    auto one = at::ones({1});
    group->all_reduce(one);
    EXPECT_EQ(one.item<float>(), 2);
  });
}

TEST(ProcessGroup, GivesTheSameBitsOnAllRanks) {
  run_ranks(3, [](const Group& group) {
    at::manual_seed(group->rank());
    auto tensor = at::randn({10007});
    group->all_reduce(tensor, ReduceOp::avg);
    EXPECT_TRUE(same_on_all_ranks(*group, tensor));
  });
}

TEST(ProcessGroup, AsynchronousCallsMayBeWaitedForInAnyOrderAndMoreThanOnce) {
  run_ranks(3, [](const Group& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({100 + i}, i + group->rank()).to(i % 2 == 0 ? at::kFloat : at::kHalf));
      works.push_back(group->all_reduce_async(tensors.back()));
    }
    for (int i = 19; i >= 0; --i) {
      const auto n = static_cast<std::size_t>(i);
      works[n].wait();
      works[n].wait();
      EXPECT_TRUE(works[n].is_completed());
      EXPECT_EQ(tensors[n].to(at::kLong).sum().item<std::int64_t>(), (3 * i + 3) * (100 + i));
    }
  });
}

TEST(ProcessGroup, AWorkMayOutliveItsGroup) {
  run_ranks(2, [](const Group& group) {
    auto environment = group->environment();
    environment.store_socket.reset();
    ProcessGroupOptions options;
    options.environment = environment;
    auto second = init_process_group(options);
    auto tensor = at::ones({1000});
    auto work = second->all_reduce_async(tensor);
    group->barrier();
    second.reset();
    work.wait();
    EXPECT_EQ(tensor.sum().item<float>(), 2000);
  });
}

TEST(ProcessGroup, CallsFromSeveralThreadsAreSerialised) {
  run_ranks(2, [](const Group& group) {
    // Equal tensors, so that the order between the threads does not matter.
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&group] {
        for (int i = 0; i < 50; ++i) {
          auto tensor = at::full({64}, group->rank() + 1);
          group->all_reduce(tensor);
          EXPECT_EQ(tensor.sum().item<std::int64_t>(), 192);
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST(ProcessGroup, MisuseIsALogicErrorBeforeAnythingIsSent) {
  run_ranks(2, [](const Group& group) {
    at::Tensor undefined;
    EXPECT_THROW(group->all_reduce(undefined), std::logic_error);
    auto shared = at::ones({1}).expand({4});
    EXPECT_THROW(group->all_reduce(shared), std::logic_error);
    auto sparse = at::eye(3).to_sparse();
    EXPECT_THROW(group->broadcast(sparse), std::logic_error);
    auto integers = at::ones({3}, at::kInt);
    EXPECT_THROW(group->all_reduce(integers, ReduceOp::avg), std::logic_error);
    auto complex = at::ones({3}, at::kComplexFloat);
    EXPECT_THROW(group->all_reduce(complex, ReduceOp::max), std::logic_error);
    auto small = at::ones({3}).to(at::kFloat8_e5m2);
    EXPECT_THROW(group->all_reduce(small), std::logic_error);
    EXPECT_THROW(group->broadcast(integers, 2), std::logic_error);
    EXPECT_THROW(group->broadcast(integers, -1), std::logic_error);
    group->all_reduce(integers);
    EXPECT_EQ(integers.sum().item<int>(), 6);
  });
}

TEST(ProcessGroup, AllGatherNamesTheRankWhoseShapeDiffersAndGoesOn) {
  run_ranks(3, [](const Group& group) {
    try {
      group->all_gather(at::ones({2, group->rank() == 2 ? 5 : 4}));
      ADD_FAILURE() << "no exception";
    } catch (const CallMismatchError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("ranks 0, 1: all_gather #1 (Float [2, 4])"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 2: all_gather #1 (Float [2, 5])"), std::string::npos) << text;
    }
    EXPECT_THROW(group->all_gather(at::ones({2}, group->rank() == 1 ? at::kInt : at::kFloat)), CallMismatchError);
    group->barrier();
  });
}

TEST(ProcessGroup, AllocateGivesZeroedAlignedMemory) {
  run_ranks(2, [](const Group& group) {
    const auto memory = group->allocate(1000);
    EXPECT_EQ(memory.scalar_type(), at::kByte);
    EXPECT_EQ(memory.numel(), 1000);
    EXPECT_EQ(memory.count_nonzero().item<std::int64_t>(), 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data_ptr()) % 64, 0U);
  });
}

TEST(ProcessGroup, ResultsReachALeafThatRequiresGrad) {
  run_ranks(2, [](const Group& group) {
    auto leaf = at::full({3}, 1.0 + group->rank()).requires_grad_(true);
    group->broadcast(leaf, 1);
    group->all_reduce(leaf);
    EXPECT_EQ(leaf.sum().item<double>(), 12);
    EXPECT_TRUE(leaf.is_leaf());
  });
}

TEST(ProcessGroup, GroupsMayBeMadeAgainAtTheSameAddress) {
  run_ranks(2, [](const Group& first) {
    auto environment = first->environment();
    environment.store_socket.reset();
    ProcessGroupOptions options;
    options.environment = environment;
    for (int i = 0; i < 10; ++i) {
      const auto group = init_process_group(options);
      auto tensor = at::ones({10});
      group->all_reduce(tensor);
      EXPECT_EQ(tensor.sum().item<float>(), 20);
      if (i % 2 == 0) group->shutdown();
    }
  });
}

TEST(ProcessGroup, MeetsOverAStoreFile) {
  RanksOptions options;
  options.store_file = ::testing::TempDir() + "ddp_store_" + std::to_string(::getpid());
  run_ranks(3, [](const Group& group) { group->barrier(); }, options);
}

// Affinity masks count, as do quotas; what the user has set wins.
TEST(ProcessGroup, RanksOfAHostDivideTheCoresThatTheyMayUse) {  // R74
  for (const bool is_set : {false, true})
    run_ranks(2, [&](const auto& group) {
      cpu_set_t one_core;
      CPU_ZERO(&one_core);
      CPU_SET(::sched_getcpu(), &one_core);
      ASSERT_EQ(::sched_setaffinity(0, sizeof one_core, &one_core), 0);
      at::set_num_threads(3);
      is_set ? ::setenv("OMP_NUM_THREADS", "3", 1) : ::unsetenv("OMP_NUM_THREADS");
      const auto part = group->new_group({0, 1});
      EXPECT_EQ(at::get_num_threads(), 3);  // a sub-group changes nothing
      ProcessGroupOptions options;
      options.environment = group->environment();
      const auto again = init_process_group(options);
      EXPECT_EQ(at::get_num_threads(), is_set ? 3 : 1);
    });
}

// It would end this rank, too.
TEST(ProcessGroup, OverGlooADeadPeerRaisesNoSignal) {
  for (auto* const chosen : {SIG_DFL, +[](int) {}})
    run_ranks(2, [&](const auto& group) {
      ::signal(SIGPIPE, chosen);
      ProcessGroupOptions options;
      options.environment = group->environment();
      options.backend = "gloo";
      const auto over_gloo = init_process_group(options);
      struct sigaction action{};
      ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &action), 0);
      EXPECT_EQ(action.sa_handler, chosen == SIG_DFL ? SIG_IGN : chosen);
    });
}

}  // namespace
}  // namespace ddp::testing
