#pragma once
/// collectives.hpp: every collective on tensors of a device, whichever way they travel.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/process_group.hpp"

namespace ddp::testing {

using Tensors = std::vector<at::Tensor>;

/// [4, 3], of small whole numbers, so that sums are exact in every dtype.
inline at::Tensor values_of_rank(const ProcessGroup& group, at::Device device, at::ScalarType dtype = at::kFloat) {
  return (torch::arange(12).reshape({4, 3}) + 2 * group.rank()).to(dtype).to(device);
}

/// A collective, and what it leaves on this rank. `device`: where its tensors are.
struct Collective {
  std::string name;
  std::function<Tensors(ProcessGroup& group, at::Device device)> call;
};

inline Tensors reduced(ProcessGroup& group, at::Device device, ReduceOp op) {
  Tensors results;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt}) {
    if (op == ReduceOp::avg && !at::isFloatingType(dtype)) continue;
    auto tensor = values_of_rank(group, device, dtype);
    group.all_reduce(tensor, op);
    results.push_back(tensor);
  }
  auto transposed = values_of_rank(group, device).t();
  group.all_reduce(transposed, op);
  results.push_back(transposed);
  return results;
}

inline Tensors scattered(ProcessGroup& group, at::Device device) {
  const int size = group.size();
  const auto rows = torch::cat(Tensors(static_cast<std::size_t>(size), values_of_rank(group, device)));
  auto part = torch::zeros({4, 3}, device);
  group.reduce_scatter(part, rows);
  auto exchanged = torch::zeros({4 * size, 3}, device);
  group.all_to_all(exchanged, rows);
  const auto parts = group.rank() == 0 ? rows.chunk(size) : Tensors();
  auto own = torch::zeros({4, 3}, device);
  group.scatter(own, parts, 0);
  return {part, exchanged, own};
}

inline Tensors copied(ProcessGroup& group, at::Device device) {
  auto from_last = values_of_rank(group, device);
  group.broadcast(from_last, group.size() - 1);
  auto reduced_on_last = values_of_rank(group, device);
  group.reduce(reduced_on_last, group.size() - 1);
  Tensors results{from_last, reduced_on_last};
  const auto uneven = values_of_rank(group, device).narrow(0, 0, 1 + group.rank() % 4);
  for (const auto& tensor : group.all_gather(uneven)) results.push_back(tensor);
  for (const auto& tensor : group.gather(values_of_rank(group, device), 0)) results.push_back(tensor);
  return results;
}

/// Each rank sends to the next one and receives from the one before.
inline Tensors passed_on(ProcessGroup& group, at::Device device) {
  auto received = torch::zeros({4, 3}, device);
  const int size = group.size();
  const auto sent = group.send_async(values_of_rank(group, device), (group.rank() + 1) % size);
  group.recv(received, (group.rank() + size - 1) % size);
  sent.wait();
  return {received};
}

inline std::vector<Collective> all_collectives() {
  const auto with = [](ReduceOp op) {
    return [op](ProcessGroup& group, at::Device device) { return reduced(group, device, op); };
  };
  return {{"sum", with(ReduceOp::sum)}, {"avg", with(ReduceOp::avg)}, {"min", with(ReduceOp::min)},
          {"max", with(ReduceOp::max)}, {"scatter", &scattered},      {"copies", &copied},
          {"messages", &passed_on}};
}

/// Collective. Each of them leaves on the device what it leaves in the host's memory, where it goes another way.
inline void expect_what_the_cpu_gives(ProcessGroup& group, at::Device device) {
  for (const auto& [name, call] : all_collectives()) {
    const auto expected = call(group, at::kCPU), here = call(group, device);
    ASSERT_EQ(here.size(), expected.size()) << name;
    for (std::size_t i = 0; i < here.size(); ++i) {
      EXPECT_EQ(here[i].device(), device) << name << ' ' << i;
      const double tolerance = name == "avg" ? 1e-2 : 0;  // NCCL divides before it adds
      EXPECT_TRUE(torch::allclose(here[i].cpu().to(at::kDouble), expected[i].to(at::kDouble), tolerance, tolerance))
          << name << ' ' << i << '\n'
          << here[i] << expected[i];
    }
  }
}

}  // namespace ddp::testing
