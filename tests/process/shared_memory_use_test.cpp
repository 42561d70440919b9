// Over shared memory: limits of the system, several groups and threads at once, calls that nobody waits for, and what
// is left of a group.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/run.hpp"
#include "process/shared_memory.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

void limit_files_to(rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

constexpr rlim_t kMegabyte = 1 << 20;

// Some steps; true if all ranks come to the weights of one process with the whole batch.
bool trains_rightly(const Group& group) {
  Perceptron net, reference;
  DistributedDataParallel model(net, group);
  torch::optim::SGD own(model->parameters(), 0.05), other(reference->parameters(), 0.05);
  bool is_right = true;
  for (int step = 0; step < 3; ++step) {
    const auto whole = Batch::of_step(step, 4 * group->size());
    const auto part = whole.of_rank(group->rank(), group->size());
    own.zero_grad();
    other.zero_grad();
    squared_error(model(part.input), part.target).backward();
    squared_error(reference(whole.input), whole.target).backward();
    own.step();
    other.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i)
    is_right &= close(net->parameters()[i], reference->parameters()[i], 1e-12);
  return is_right;
}

// Fault R77. Rank 0 makes the memory, so its limit counts.
void expect_gloo_with_one_warning(const std::vector<int>& limited) {
  const auto outcomes = observe_ranks(2, [&](const Environment& environment) {
    for (const int rank : limited)
      if (rank == environment.rank) limit_files_to(kMegabyte);
    const auto group = join(environment, 20s, "auto");
    EXPECT_EQ(group->backend(), "gloo");
    EXPECT_TRUE(trains_rightly(group));
    group->shutdown();
  });
  expect_success(outcomes);
  EXPECT_EQ(count(outcomes[0].output, "\n"), 1) << outcomes[0].output;
  EXPECT_TRUE(contains(outcomes[0].output, "rank 0: the file-size limit (RLIMIT_FSIZE) is 1 MB, "));
  EXPECT_EQ(outcomes[1].output, "");
}

TEST(SharedMemoryLimit, OfFilesOnEveryRankMakesThemAllTalkOverGloo) { expect_gloo_with_one_warning({0, 1}); }

TEST(SharedMemoryLimit, OfFilesOnRankZeroMakesThemAllTalkOverGloo) { expect_gloo_with_one_warning({0}); }

TEST(SharedMemoryLimit, OfFilesIsAConfigErrorOnEveryRankWhereNothingElseIsWanted) {
  for (int round = 0; round < 10; ++round) {
    expect_success(observe_ranks(4, [&](const Environment& environment) {
      if (environment.rank == 0) limit_files_to(kMegabyte);
      try {
        static_cast<void>(join(environment, 20s));
        ADD_FAILURE() << "no exception";
      } catch (const ConfigError& error) {
        expect_contains(error.what(), {"\"shm\" cannot be had: rank 0: the file-size limit (RLIMIT_FSIZE) is 1 MB, "});
      }
    }));
  }
}

// The memory has its size already: the limit is about files that grow.
TEST(SharedMemoryLimit, OfFilesThatComesLateOrElsewhereForbidsNothing) {
  for (const bool is_late : {false, true}) {
    const auto outcomes = observe_ranks(2, [&](const Environment& environment) {
      if (!is_late && environment.rank == 1) limit_files_to(kMegabyte);
      const auto group = join(environment, 20s);
      if (is_late) limit_files_to(kMegabyte);
      auto tensor = group->allocate(4 * kMegabyte).view(at::kFloat).fill_(group->rank() + 1);
      group->all_reduce(tensor);
      EXPECT_TRUE(tensor.eq(3).all().item<bool>());
      EXPECT_TRUE(trains_rightly(group));
      group->shutdown();
    });
    expect_success(outcomes);
    for (const auto& outcome : outcomes) EXPECT_EQ(outcome.output, "");
  }
}

// With this limit each rank has room for 64 MB.
TEST(SharedMemoryLimit, ThatIsMetByATensorGivesOrdinaryMemoryAndOneWarning) {
  for (const int limited : {0, 1}) {
    const auto outcomes = observe_ranks(2, [&](const Environment& environment) {
      limit_files_to(160 * kMegabyte);
      const auto group = join(environment, 20s);
      std::vector<at::Tensor> kept;
      for (int i = 0; i < 3; ++i) {
        const auto bytes = static_cast<std::int64_t>((group->rank() == limited ? 65 : 8) * kMegabyte);
        kept.push_back(group->allocate(bytes));
        EXPECT_EQ(kept.back()[bytes - 1].item<int>(), 0);
        auto tensor = kept.back().narrow(0, 0, 1 << 20).view(at::kFloat).fill_(group->rank() + 1);
        group->all_reduce(tensor);
        EXPECT_TRUE(tensor.eq(3).all().item<bool>());
      }
      EXPECT_TRUE(trains_rightly(group));
      group->shutdown();
    });
    expect_success(outcomes);
    EXPECT_EQ(count(outcomes[static_cast<std::size_t>(limited)].output, "\n"), 1);
    EXPECT_TRUE(contains(outcomes[static_cast<std::size_t>(limited)].output, "no more shared memory: "));
    EXPECT_EQ(outcomes[static_cast<std::size_t>(1 - limited)].output, "");
  }
}

RanksOptions over_shared_memory() {
  RanksOptions options;
  options.backend = "shm";
  return options;
}

void reduce_often(ProcessGroup& group, int times) {
  auto shared = group.allocate(1 << 18).view(at::kFloat);
  for (int i = 0; i < times; ++i) {
    auto tensor = i % 3 == 0 ? at::empty({64}) : i % 3 == 1 ? at::empty({1 << 16}) : shared;
    tensor.fill_(group.rank() + i);
    group.all_reduce(tensor);
    ASSERT_TRUE(tensor.eq(2 * i + 1).all().item<bool>()) << "call " << i;
  }
}

void exchange_often(ProcessGroup& group, int times) {
  const int other = 1 - group.rank();
  for (int i = 0; i < times; ++i) {
    const auto size = i % 2 == 0 ? 16 : 1 << 16;
    const auto out = at::full({size}, group.rank() + i);
    auto in = at::empty_like(out);
    const auto work = group.send_async(out, other);
    group.recv(in, other);
    work.wait();
    ASSERT_TRUE(in.eq(other + i).all().item<bool>()) << "message " << i;
  }
}

TEST(SharedMemoryGroups, ServeThreadsAtOnceWhileAnotherOneExchangesMessages) {
  run_ranks(
      2,
      [](const Group& group) {
        const auto second = group->new_group({0, 1});
        std::thread first([&] { reduce_often(*group, 200); });
        std::thread other([&] { reduce_often(*second, 200); });
        exchange_often(*group, 100);
        first.join();
        other.join();
      },
      over_shared_memory());
}

TEST(SharedMemoryGroups, MayBeOfSomeRanks) {
  run_ranks(
      3,
      [](const Group& group) {
        const auto part = group->new_group({1, 2});
        if (part) {
          EXPECT_EQ(part->backend(), "shm");
          reduce_often(*part, 50);
          exchange_often(*part, 20);
          // The larger group's memory is private to the smaller one.
          auto tensor = group->allocate(1 << 20).fill_(part->rank() + 1);
          part->all_reduce(tensor);
          EXPECT_TRUE(tensor.eq(3).all().item<bool>());
        }
        auto tensor = at::ones({1 << 16});
        group->all_reduce(tensor);
        EXPECT_TRUE(tensor.eq(3).all().item<bool>());
      },
      over_shared_memory());
}

at::Tensor memory_of(ProcessGroup& group, int kind) {
  if (kind == 0) return at::ones({64});
  return kind == 1 ? at::ones({1 << 18}) : group.allocate(1 << 20).view(at::kFloat).fill_(1);
}

template <class Condition>
void wait_until(Condition condition) {
  for (const auto limit = Clock::now() + 10s; !condition();) {
    ASSERT_LT(Clock::now(), limit);
    std::this_thread::yield();
  }
}

// completed_at() asks for nothing: it only tells.
TEST(SharedMemoryWork, EndsOnAllRanksAlthoughNobodyWaits) {
  for (const int kind : {0, 1, 2})
    run_ranks(
        3,
        [&](const Group& group) {
          auto tensor = memory_of(*group, kind);
          const auto work = group->all_reduce_async(tensor);
          std::vector<at::Tensor> gathered;
          const auto second = group->all_gather_async(gathered, tensor);
          wait_until([&] { return work.completed_at() && second.completed_at(); });
          EXPECT_TRUE(tensor.eq(3).all().item<bool>());
        },
        over_shared_memory());
}

TEST(SharedMemoryWork, EndsForWhoWaitsAlthoughTheOtherRankDoesNot) {
  const Gate has_ended;
  run_ranks(
      2,
      [&](const Group& group) {
        auto tensor = memory_of(*group, 1);
        const auto work = group->all_reduce_async(tensor);
        if (group->rank() == 1) return has_ended.pass();
        work.wait();
        EXPECT_TRUE(tensor.eq(2).all().item<bool>());
        has_ended.open();
      },
      over_shared_memory());
}

TEST(SharedMemoryWork, IsCompletedWithoutAWait) {
  for (const int kind : {0, 1, 2})
    run_ranks(
        2,
        [&](const Group& group) {
          auto tensor = memory_of(*group, kind);
          const auto work = group->all_reduce_async(tensor);
          wait_until([&] { return work.is_completed(); });
          EXPECT_TRUE(tensor.eq(2).all().item<bool>());
        },
        over_shared_memory());
}

TEST(SharedMemoryWork, MayBeUnderWayTwoHundredTimesAndWaitedForInReverse) {
  for (const int kind : {0, 1, 2})
    run_ranks(
        2,
        [&](const Group& group) {
          std::vector<at::Tensor> tensors;
          std::vector<Work> works;
          for (int i = 0; i < 200; ++i) {
            tensors.push_back(kind == 0 ? at::full({64}, i) : memory_of(*group, kind).narrow(0, 0, 1 << 12).fill_(i));
            works.push_back(group->all_reduce_async(tensors.back()));
          }
          for (int i = 199; i >= 0; --i) {
            works[static_cast<std::size_t>(i)].wait();
            EXPECT_TRUE(tensors[static_cast<std::size_t>(i)].eq(2 * i).all().item<bool>()) << i;
          }
        },
        over_shared_memory());
}

TEST(SharedMemoryWork, OutlivesItsGroup) {
  expect_success(observe_ranks(2, [](const Environment& environment) {
    auto group = join(environment, 20s);
    auto tensor = memory_of(*group, 1), shared = memory_of(*group, 2);
    const auto work = group->all_reduce_async(tensor), other = group->all_reduce_async(shared);
    group.reset();
    work.wait();
    other.wait();
    EXPECT_TRUE(tensor.eq(2).all().item<bool>());
    EXPECT_TRUE(shared.eq(2).all().item<bool>());
  }));
}

TEST(SharedMemoryTensor, OutlivesItsGroup) {
  expect_success(observe_ranks(2, [](const Environment& environment) {
    auto group = join(environment, 20s);
    auto tensor = memory_of(*group, 2);
    group->all_reduce(tensor);
    group->shutdown();
    group.reset();
    EXPECT_FALSE(mapped_memory().empty());
    EXPECT_TRUE(tensor.eq(2).all().item<bool>());
    tensor.fill_(7);
    EXPECT_TRUE(tensor.eq(7).all().item<bool>());
    tensor.reset();
    EXPECT_TRUE(mapped_memory().empty());
  }));
}

TEST(SharedMemoryWork, ThatIsPendingDoesNotHoldUpAnExceptionsWayOut) {
  for (const int kind : {1, 2}) {
    RanksOptions options;
    options.run_exit_handlers = true;
    const Shared<std::atomic<Clock::rep>> thrown;
    const auto outcomes = observe_ranks(
        2,
        [&](const Environment& environment) {
          std::exit(run([&] {
            const auto group = join(environment);
            auto tensor = memory_of(*group, kind);
            const auto work = group->all_reduce_async(tensor);
            if (group->rank() == 1) {
              *thrown = Clock::now().time_since_epoch().count();
              throw std::runtime_error("no memory for the batch");
            }
            std::vector<Work> works;
            for (int i = 0; i < 3; ++i) works.push_back(group->all_reduce_async(tensor));
            works.back().wait();
          }));
        },
        options);
    EXPECT_EQ(outcomes[1].exit_code, 1) << outcomes[1].ending() << outcomes[1].output;
    EXPECT_EQ(outcomes[0].exit_code, 76) << outcomes[0].ending() << outcomes[0].output;
    for (const auto& outcome : outcomes)
      EXPECT_LT(outcome.ended.time_since_epoch() - Clock::duration(thrown->load()), 2s) << outcome.rank;
  }
}

struct Holdings {
  std::int64_t descriptors = 0, threads = 0, mappings = 0;

  static Holdings now() {
    const auto count = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{});
    };
    return {count("/proc/self/fd"), count("/proc/self/task"), static_cast<std::int64_t>(mapped_memory().size())};
  }
  bool exceeds(const Holdings& other) const {
    return descriptors > other.descriptors || threads > other.threads || mappings > other.mappings;
  }
};

TEST(SharedMemoryGroups, LeaveNoDescriptorThreadOrMappingBehind) {  // fault R24
  expect_success(observe_ranks(2, [](const Environment& environment) {
    const auto round = [&] {
      const auto group = join(environment, 20s);
      auto tensor = memory_of(*group, 2);
      group->all_reduce_async(tensor).wait();
      group->shutdown();
    };
    for (int i = 0; i < 3; ++i) round();
    const auto before = Holdings::now();
    for (int i = 0; i < 50; ++i) round();
    EXPECT_EQ(before.mappings, 0);
    wait_until([&] { return !Holdings::now().exceeds(before); });  // a thread that ends is listed a moment longer
  }));
}

}  // namespace
}  // namespace ddp::testing
