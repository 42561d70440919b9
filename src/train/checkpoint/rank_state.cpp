#include "train/checkpoint/rank_state.hpp"

#include <stdexcept>
#include <utility>

#include "ddp/comm_hook.hpp"
#include "train/checkpoint/random_state.hpp"

namespace ddp::checkpoint {
namespace {

// The hook's name in the file, or nothing.
std::string hook_in(const Place& rank) {
  const auto hook = rank.find("comm_hook");
  return hook && !hook->is_none() ? hook->at("name").text() : "";
}

}  // namespace

void RankState::keep(const std::string& name, CheckpointValue value) {
  for (const auto& entry : values_)
    if (entry.first == name) throw std::logic_error("checkpoint: keeps a value \"" + name + "\" already");
  values_.emplace_back(name, std::move(value));
}

std::string RankState::to_bytes() const {
  auto state = empty_dict();
  state.insert("random", random_state(device_));
  if (const auto kept = hook_ ? hook_->state() : Value(); !kept.isNone()) {
    auto hook = empty_dict();
    hook.insert("name", hook_->name());
    hook.insert("state", to_write(kept, Tensors::shared));
    state.insert("comm_hook", hook);
  }
  auto values = empty_dict();
  for (const auto& [name, value] : values_) values.insert(name, to_write(value.state(), Tensors::shared));
  state.insert("values", values);
  std::string bytes;
  write_pt(state, {}, [&](std::string_view part) { bytes += part; });
  return bytes;
}

Value RankState::from_bytes(const std::vector<std::string>& all) {
  auto list = empty_list();
  for (const auto& bytes : all) list.push_back(read_pt(std::make_shared<std::string>(bytes)));
  return list;
}

bool RankState::fits(const Place& root, int world_size) {
  const auto ranks = root.find("ranks");
  return ranks && ranks->items().size() == static_cast<std::size_t>(world_size);
}

Commit RankState::stage(const Place& ranks, int rank) const {
  const auto mine = ranks.items().at(static_cast<std::size_t>(rank));
  auto random = stage_random_state(device_, mine.at("random"));
  Commit hook;
  if (hook_ && hook_in(mine) == hook_->name()) hook = hook_->stage(mine.at("comm_hook").at("state").value());
  std::vector<Commit> commits{std::move(random)};
  if (hook) commits.push_back(std::move(hook));
  const auto saved = mine.find("values");
  for (const auto& [name, value] : values_)
    if (const auto own = saved ? saved->find(name) : std::nullopt) commits.push_back(stage_value(name, value, *own));
  return [commits = std::move(commits)] {
    for (const auto& commit : commits) commit();
  };
}

std::vector<std::string> RankState::remarks(const Place& root, int world_size) const {
  std::vector<std::string> remarks;
  const auto ranks = root.find("ranks");
  const auto all = ranks ? ranks->items() : std::vector<Place>();
  const auto saved_hook = all.empty() ? "" : hook_in(all[0]);
  const auto hook = hook_ && !hook_->state().isNone() ? hook_->name() : "";
  if (!fits(root, world_size)) {
    remarks.push_back(all.empty() ? "it has no random numbers' state, so they go on from the ones here"
                                  : "it is of " + std::to_string(all.size()) + " ranks, here are " +
                                        std::to_string(world_size) + ": random numbers go on from the ones here");
    if (!hook.empty()) remarks.push_back("what the hook " + hook + " remembers begins anew");
    for (const auto& entry : values_)
      remarks.push_back("the value \"" + entry.first + "\" of each rank stays as it is");
  } else if (saved_hook != hook) {
    remarks.push_back(
        (saved_hook.empty() ? "it has no state of a hook" : "it has the state of the hook " + saved_hook) +
        (hook.empty() ? ", and the hook here keeps none" : ", and here is the hook " + hook));
  }
  return remarks;
}

}  // namespace ddp::checkpoint
