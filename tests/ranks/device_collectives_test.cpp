// The collectives on tensors of an accelerator: over an engine of its own and through the host's memory.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <thread>

#include "comm/planned_calls.hpp"
#include "support/device_ranks.hpp"
#include "support/thrown.hpp"

namespace ddp::testing {
namespace {

at::Tensor of_rank(int rank, at::ScalarType dtype = at::kFloat) {
  return (torch::arange(6, torch::kLong).reshape({2, 3}) + 10 * rank).to(dtype);
}

class DeviceCollectives : public DeviceRanks, public ::testing::WithParamInterface<const char*> {
 protected:
  void on(int world, const Body& body) { run(world, GetParam(), body); }
};
INSTANTIATE_TEST_SUITE_P(Over, DeviceCollectives, ::testing::Values("fake", "gloo", "shm"), name_of_way);

TEST_P(DeviceCollectives, GiveWhatTheCpuGives) {
  on(3, [](ProcessGroup& group, at::Device device) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kLong, at::kShort, at::kByte, at::kBool})
      for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
        auto host = of_rank(group.rank(), dtype), here = host.to(device);
        group.all_reduce(host, op);
        group.all_reduce(here, op);
        EXPECT_TRUE(torch::equal(host, here.cpu())) << dtype << static_cast<int>(op);
      }
    auto mean = of_rank(group.rank()).to(device);
    group.all_reduce(mean, ReduceOp::avg);
    EXPECT_TRUE(torch::allclose(mean.cpu(), of_rank(1)));
    auto complex = torch::complex(of_rank(group.rank()), of_rank(0)).to(device);
    group.all_reduce(complex);
    EXPECT_TRUE(torch::equal(torch::view_as_real(complex.cpu()),
                             torch::view_as_real(torch::complex(of_rank(1), of_rank(0)) * 3)));
    auto transposed = of_rank(group.rank()).to(device).t();
    group.all_reduce(transposed);
    EXPECT_TRUE(torch::equal(transposed.cpu(), (of_rank(1) * 3).t()));
  });
}

TEST_P(DeviceCollectives, MoveEachRanksPart) {
  on(3, [](ProcessGroup& group, at::Device device) {
    const int rank = group.rank();
    auto sent = of_rank(rank).to(device);
    auto copied = sent.clone();
    group.broadcast(copied, 2);
    EXPECT_TRUE(torch::equal(copied.cpu(), of_rank(2)));
    auto reduced = sent.clone();
    group.reduce(reduced, 1);
    EXPECT_TRUE(torch::equal(reduced.cpu(), rank == 1 ? of_rank(1) * 3 : of_rank(rank)));
    const auto rows = torch::full({rank, 2}, rank, torch::kFloat).to(device);
    const auto all = group.all_gather(rows);
    ASSERT_EQ(all.size(), 3U);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(all[static_cast<std::size_t>(i)].device(), device);
      EXPECT_TRUE(torch::equal(all[static_cast<std::size_t>(i)].cpu(), torch::full({i, 2}, i, torch::kFloat)));
    }
    const auto gathered = group.gather(sent, 1);
    EXPECT_EQ(gathered.size(), rank == 1 ? 3U : 0U);
    for (std::size_t i = 0; i < gathered.size(); ++i)
      EXPECT_TRUE(torch::equal(gathered[i].cpu(), of_rank(static_cast<int>(i))));
    auto part = torch::zeros({2, 3}).to(device);
    group.scatter(part, gathered, 1);
    EXPECT_TRUE(torch::equal(part.cpu(), of_rank(rank)));
    auto third = torch::zeros({1, 3}).to(device);
    group.reduce_scatter(third, torch::cat({sent, sent.narrow(0, 0, 1)}));
    EXPECT_TRUE(
        torch::equal(third.cpu(), (torch::cat({of_rank(1), of_rank(1).narrow(0, 0, 1)}) * 3).narrow(0, rank, 1)));
    auto exchanged = torch::zeros({3, 2}).to(device);
    group.all_to_all(exchanged, torch::full({3, 2}, rank, torch::kFloat).to(device));
    EXPECT_TRUE(torch::equal(exchanged.cpu(), torch::tensor({{0., 0.}, {1., 1.}, {2., 2.}}, torch::kFloat)));
  });
}

TEST_P(DeviceCollectives, OfTensorsInMemoryAndByteStringsGoOverTheHost) {
  on(2, [](ProcessGroup& group, at::Device) {
    auto host = of_rank(group.rank());
    group.all_reduce(host);
    EXPECT_TRUE(torch::equal(host, of_rank(0) + of_rank(1)));
    EXPECT_EQ(group.all_gather_bytes(std::string(3, static_cast<char>('a' + group.rank()))),
              (std::vector<std::string>{"aaa", "bbb"}));
    group.barrier();
    EXPECT_EQ(fake_engine_calls("allreduce"), 0);
  });
}

TEST_P(DeviceCollectives, MessagesArriveOnTheDeviceAlsoWhereBothSendFirst) {
  on(2, [](ProcessGroup& group, at::Device device) {
    const int other = 1 - group.rank();
    auto received = torch::zeros({2, 3}).to(device);
    const auto sent = group.send_async(of_rank(group.rank()).to(device), other);
    group.recv(received, other);
    sent.wait();
    EXPECT_TRUE(torch::equal(received.cpu(), of_rank(other)));
  });
}

TEST_P(DeviceCollectives, ComeBehindWhatTheCallersStreamHasYetToDo) {
  on(2, [](ProcessGroup& group, at::Device device) {
    auto& accelerator = fake_accelerator();
    fake_engine().is_early = true;  // its calls go as early as their order lets them
    const auto side = accelerator.stream(2, device);
    auto values = torch::zeros({64}).to(device);
    at::Tensor result;
    {
      const c10::StreamGuard on_side(side);
      values.fill_(group.rank() + 1);  // written late, on that stream alone
      auto work = group.all_reduce_async(values);
      work.wait();
      result = values * 10;
    }
    c10::Event done(device.type());
    done.record(side);
    done.block(accelerator.stream(0, device));
    EXPECT_TRUE(torch::equal(result.cpu(), torch::full({64}, 30.)));
  });
}

// What the first wait has queued, copying back for one, is part of the result.
TEST_P(DeviceCollectives, AreSeenByEachStreamThatWaitsForThem) {
  on(2, [](ProcessGroup& group, at::Device device) {
    auto& accelerator = fake_accelerator();
    auto strided = torch::full({4, 4}, group.rank() + 1.0).to(device).t();
    c10::Event given(device.type());
    given.record(accelerator.stream(0, device));
    const auto work = group.all_reduce_async(strided);
    for (const int stream : {1, 2}) {
      const c10::StreamGuard guard(accelerator.stream(stream, device));
      given.block(accelerator.stream(stream, device));
      work.wait();
      EXPECT_TRUE(torch::equal((strided + 0).cpu(), torch::full({4, 4}, 3.0))) << stream;
    }
  });
}

// Each of them while others still copy what the first one has brought.
TEST_P(DeviceCollectives, AreSeenByThreadsOnStreamsOfTheirOwn) {
  on(2, [](ProcessGroup& group, at::Device device) {
    auto strided = torch::full({64, 64}, group.rank() + 1.0).to(device).t();
    const auto work = group.all_reduce_async(strided);
    std::vector<std::thread> waiters;
    std::array<at::Tensor, 4> seen;
    for (int i = 0; i < 4; ++i)
      waiters.emplace_back([&, i] {
        const c10::StreamGuard guard(fake_accelerator().stream(i, device));
        work.wait();
        seen[static_cast<std::size_t>(i)] = (strided + 0).cpu();
      });
    for (auto& waiter : waiters) waiter.join();
    for (const auto& values : seen) EXPECT_TRUE(torch::equal(values, torch::full({64, 64}, 3.0)));
  });
}

TEST_P(DeviceCollectives, ATensorOfAnotherDeviceIsRefusedBeforeAnythingIsSent) {
  on(2, [](ProcessGroup& group, at::Device device) {
    auto other = torch::zeros({2}).to(at::Device(device.type(), static_cast<at::DeviceIndex>(3)));
    EXPECT_EQ(error_of<std::logic_error>([&] { group.all_reduce(other); }),
              "all_reduce: the tensor is on " + other.device().str() + ", the group on " + device.str());
    group.barrier();
  });
}

TEST_P(DeviceCollectives, TensorsOnTheDeviceHereAndInMemoryThereAreACallMismatchOnAll) {
  on(2, [](ProcessGroup& group, at::Device device) {
    auto tensor = group.rank() == 0 ? torch::zeros({2}) : torch::zeros({2}).to(device);
    const auto text = error_of<CallMismatchError>([&] { group.all_reduce(tensor); });
    EXPECT_NE(text.find("rank 0: all_reduce"), std::string::npos) << text;
    EXPECT_NE(text.find("[2] on "), std::string::npos) << text;
    group.barrier();
  });
}

TEST_P(DeviceCollectives, OfASubGroupWork) {
  on(3, [](ProcessGroup& group, at::Device device) {
    const auto pair = group.new_group({0, 2});
    if (!pair) return;
    EXPECT_EQ(pair->device(), device);
    auto sum = of_rank(group.rank()).to(device);
    pair->all_reduce(sum);
    EXPECT_TRUE(torch::equal(sum.cpu(), of_rank(0) + of_rank(2)));
  });
}

TEST_F(DeviceRanks, OfASubGroupAreSplitFromTheLargerOnesWithAllItsRanks) {
  run(3, kOnTheFake, [](ProcessGroup& group, at::Device device) {
    fake_engine().splits = true;
    fake_engine().take_notes();
    const auto pair = group.new_group({0, 2});
    EXPECT_EQ(fake_engine_calls(group.rank() == 1 ? "split without this rank" : "split"), 1);
    if (!pair) return;
    auto sum = of_rank(group.rank()).to(device);
    pair->all_reduce(sum);
    EXPECT_TRUE(torch::equal(sum.cpu(), of_rank(0) + of_rank(2)));
  });
}

TEST_P(DeviceCollectives, OfSeveralSmallTensorsAreOneLaunchWhereTheEngineCan) {
  on(2, [](ProcessGroup& group, at::Device device) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back((of_rank(group.rank()) * (i + 1)).to(device).t());
    fake_engine().take_notes();
    const auto works = comm::PlannedCalls::all_reduce_each(group, tensors, {.label = "small ones"}, ReduceOp::sum);
    const auto notes = fake_engine().take_notes();
    if (group.backend() == kOnTheFake) {
      EXPECT_EQ(works.size(), 1U);
      ASSERT_EQ(notes.size(), 5U);
      EXPECT_EQ(notes.front(), "begin together");
      EXPECT_EQ(notes.back(), "end together");
    }
    for (const auto& work : works) work.wait();
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(torch::equal(tensors[static_cast<std::size_t>(i)].cpu(), (of_rank(0) + of_rank(1)).t() * (i + 1)));
  });
}

TEST_P(DeviceCollectives, AnEmptyTensorIsNothingToMove) {
  on(2, [](ProcessGroup& group, at::Device device) {
    auto none = torch::zeros({0, 3}).to(device);
    group.all_reduce(none);
    EXPECT_EQ(group.all_gather(none).size(), 2U);
  });
}

}  // namespace
}  // namespace ddp::testing
