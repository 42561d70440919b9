#include "train/checkpoint/module_classes.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace ddp::checkpoint {
namespace {

// Python's collections.Counter and collections.OrderedDict, under all names of Python 2 for them but those that
// LibTorch or pt_file.cpp give another meaning.
constexpr std::array<std::pair<const char*, const char*>, 6> kNames{{{"collections", "Counter"},
                                                                     {"UserDict", "Counter"},
                                                                     {"UserList", "Counter"},
                                                                     {"UserString", "Counter"},
                                                                     {"UserList", "OrderedDict"},
                                                                     {"UserString", "OrderedDict"}}};

}  // namespace

ModuleClasses::Kind ModuleClasses::kind_of(const ModuleTree& tree) {
  Kind kind;
  for (const auto& entry : tree.tensors) kind.push_back(entry.first);
  for (const auto& entry : tree.children) kind.push_back(entry.first);
  return kind;
}

void ModuleClasses::count(const ModuleTree& tree, std::map<Kind, std::size_t>& kinds) {
  ++kinds[kind_of(tree)];
  for (const auto& entry : tree.children) count(entry.second, kinds);
}

ModuleClasses::ModuleClasses(const ModuleTree& root) {
  std::map<Kind, std::size_t> counts;
  count(root, counts);
  std::vector<std::pair<std::size_t, Kind>> kinds;
  for (const auto& [kind, times] : counts) kinds.emplace_back(times, kind);
  std::sort(kinds.begin(), kinds.end(), std::greater<>());
  for (const auto& [times, kind] : kinds) {
    if (classes_.size() < kNames.size())
      classes_.push_back({kNames[classes_.size()].first, kNames[classes_.size()].second, kind});
    else
      classes_.back().attributes.insert(classes_.back().attributes.end(), kind.begin(), kind.end());
    class_of_[kind] = classes_.size() - 1;
  }
  for (auto& one : classes_) {
    const std::set<std::string> distinct(one.attributes.begin(), one.attributes.end());
    one.attributes.assign(distinct.begin(), distinct.end());
  }
}

const ModuleClasses::Class& ModuleClasses::of(const ModuleTree& tree) const {
  return classes_[class_of_.at(kind_of(tree))];
}

bool ModuleClasses::are_plain() const {
  const auto is_plain = [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\'; };
  const auto is_plain_name = [&](const std::string& name) { return std::all_of(name.begin(), name.end(), is_plain); };
  return std::all_of(classes_.begin(), classes_.end(), [&](const Class& one) {
    return std::all_of(one.attributes.begin(), one.attributes.end(), is_plain_name);
  });
}

std::map<std::string, std::string> ModuleClasses::sources() const {
  std::map<std::string, std::string> sources;
  for (const auto& one : classes_) {
    auto& source = sources[one.module];
    source += "class " + std::string(one.name) + "(Module):\n  __parameters__ = []\n  __buffers__ = []\n";
    for (const auto& attribute : one.attributes) source += "  __annotations__[\"" + attribute + "\"] = Tensor\n";
  }
  return sources;
}

}  // namespace ddp::checkpoint
