#include "comm/slurm_lists.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

namespace ddp::comm {
namespace {

constexpr std::size_t kMaxHost = 253;  // of a name in the DNS
constexpr int kMaxTasks = 1 << 20;     // a node's tasks, or equal nodes in a row: beyond any machine

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

/// The first of "003-005,9": "003".
std::optional<std::string_view> first_of_brackets(std::string_view inside) {
  const auto end = std::find_if_not(inside.begin(), inside.end(), is_digit);
  const auto digits = static_cast<std::size_t>(end - inside.begin());
  if (digits == 0 || (end != inside.end() && *end != '-' && *end != ',')) return std::nullopt;
  return inside.substr(0, digits);
}

/// A positive number at the front of `text`, which it leaves behind.
std::optional<int> take_number(std::string_view& text, int most) {
  int number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || number < 1 || number > most) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(parsed.ptr - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

struct Run {
  int tasks = 0;
  int nodes = 0;
};

/// "2(x3),1" as runs of equal nodes.
std::optional<std::vector<Run>> runs_of(std::string_view list) {
  std::vector<Run> runs;
  do {
    const auto tasks = take_number(list, kMaxTasks);
    if (!tasks) return std::nullopt;
    std::optional<int> repeat = 1;
    if (take(list, "(x")) {
      repeat = take_number(list, kMaxTasks);
      if (!repeat || !take(list, ")")) return std::nullopt;
    }
    runs.push_back({*tasks, *repeat});
  } while (take(list, ","));
  if (!list.empty()) return std::nullopt;
  return runs;
}

}  // namespace

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (take(list, "[")) {
      const std::size_t end = list.find(']');
      if (end == std::string_view::npos) return std::nullopt;
      const auto first = first_of_brackets(list.substr(0, end));
      if (!first) return std::nullopt;
      host.append(*first);
      list.remove_prefix(end + 1);
      continue;
    }
    const char byte = list.front();
    if (byte <= ' ' || byte > '~' || byte == ']' || byte == '/') return std::nullopt;
    host += byte;
    list.remove_prefix(1);
  }
  if (host.empty() || host.size() > kMaxHost) return std::nullopt;
  return host;
}

std::optional<int> tasks_on_node(std::string_view list, int node) {
  const auto runs = runs_of(list);
  if (!runs || node < 0) return std::nullopt;
  for (const Run& run : *runs) {
    if (node < run.nodes) return run.tasks;
    node -= run.nodes;
  }
  return std::nullopt;
}

}  // namespace ddp::comm
