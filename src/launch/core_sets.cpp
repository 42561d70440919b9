#include "launch/core_sets.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <tuple>

namespace ddp::launch {
namespace {

namespace fs = std::filesystem;

int number_in(const fs::path& file, int otherwise) {
  int value = 0;
  return std::ifstream(file) >> value ? value : otherwise;
}

/// The folder "node3" in a CPU's own.
int node_of(const fs::path& cpu) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(cpu, none)) {
    const auto name = entry.path().filename().string();
    int node = 0;
    const auto* const end = name.data() + name.size();
    if (!name.starts_with("node") || name.size() == 4) continue;
    if (const auto result = std::from_chars(name.data() + 4, end, node); result.ptr == end) return node;
  }
  return 0;
}

/// Items 0 to `count` - 1 in `parts` runs of almost the same length: where run `part` begins.
std::size_t begin_of(std::size_t part, std::size_t parts, std::size_t count) { return part * count / parts; }

using Core = std::vector<int>;  // its CPUs

/// Sorted by node and core.
std::vector<std::vector<Core>> cores_by_node(std::vector<Cpu> cpus) {
  std::ranges::sort(cpus, {}, [](const Cpu& cpu) { return std::tuple(cpu.node, cpu.core, cpu.number); });
  std::vector<std::vector<Core>> nodes;
  const Cpu* before = nullptr;
  for (const auto& cpu : cpus) {
    if (!before || before->node != cpu.node) nodes.emplace_back();
    if (!before || before->node != cpu.node || before->core != cpu.core) nodes.back().emplace_back();
    nodes.back().back().push_back(cpu.number);
    before = &cpu;
  }
  return nodes;
}

/// How many ranks each node gets: one after the other to the node with most cores for each.
std::vector<std::size_t> ranks_of_nodes(const std::vector<std::vector<Core>>& nodes, std::size_t ranks) {
  std::vector<std::size_t> counts(nodes.size(), 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto room = [&](std::size_t i) {
      return static_cast<double>(nodes[i].size()) / static_cast<double>(counts[i] + 1);
    };
    std::size_t best = 0;
    for (std::size_t i = 1; i < nodes.size(); ++i) {
      if (room(i) > room(best)) best = i;
    }
    ++counts[best];
  }
  return counts;
}

std::vector<int> joined(std::vector<Core>::const_iterator begin, std::vector<Core>::const_iterator end) {
  std::vector<int> numbers;
  for (auto core = begin; core != end; ++core) numbers.insert(numbers.end(), core->begin(), core->end());
  std::ranges::sort(numbers);
  return numbers;
}

void share_cores(const std::vector<Core>& cores, std::size_t ranks, std::vector<std::vector<int>>& sets) {
  if (ranks <= cores.size()) {
    for (std::size_t i = 0; i < ranks; ++i) {
      const auto begin = static_cast<std::ptrdiff_t>(begin_of(i, ranks, cores.size()));
      const auto end = static_cast<std::ptrdiff_t>(begin_of(i + 1, ranks, cores.size()));
      sets.push_back(joined(cores.begin() + begin, cores.begin() + end));
    }
    return;
  }
  const auto threads = joined(cores.begin(), cores.end());
  for (std::size_t i = 0; i < ranks; ++i) {
    const auto begin = static_cast<std::ptrdiff_t>(begin_of(i, ranks, threads.size()));
    const auto end = static_cast<std::ptrdiff_t>(begin_of(i + 1, ranks, threads.size()));
    sets.emplace_back(threads.begin() + begin, threads.begin() + std::max(end, begin + 1));
  }
}

}  // namespace

std::vector<Cpu> allowed_cpus(const fs::path& root) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<Cpu> cpus;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cpus;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &allowed)) continue;
    const auto folder = root / "cpu" / ("cpu" + std::to_string(number));
    const int package = number_in(folder / "topology" / "physical_package_id", 0);
    const int core = number_in(folder / "topology" / "core_id", number);
    cpus.push_back({number, node_of(folder), (package << 16) + core});
  }
  return cpus;
}

std::vector<std::vector<int>> share_out(std::vector<Cpu> cpus, int ranks) {
  const auto nodes = cores_by_node(std::move(cpus));
  std::vector<std::vector<int>> sets;
  const auto count = static_cast<std::size_t>(ranks);
  if (nodes.empty()) return sets;
  if (count < nodes.size()) {
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<int> numbers;
      for (auto node = begin_of(i, count, nodes.size()); node < begin_of(i + 1, count, nodes.size()); ++node) {
        const auto of_node = joined(nodes[node].begin(), nodes[node].end());
        numbers.insert(numbers.end(), of_node.begin(), of_node.end());
      }
      std::ranges::sort(numbers);
      sets.push_back(std::move(numbers));
    }
    return sets;
  }
  const auto counts = ranks_of_nodes(nodes, count);
  for (std::size_t i = 0; i < nodes.size(); ++i) share_cores(nodes[i], counts[i], sets);
  return sets;
}

}  // namespace ddp::launch
