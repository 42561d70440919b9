#include "train/checkpoint/contents.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "train/checkpoint/error_text.hpp"

namespace ddp::checkpoint {
namespace {

constexpr std::array<std::string_view, 3> kKinds{"optimizer", "scheduler", "sampler"};

// "optimizer" and "optimizer_2" are of the same kind.
std::string_view kind_of_key(std::string_view key) {
  const auto kind = key.substr(0, key.find('_'));
  const auto number = key.substr(std::min(key.size(), kind.size() + 1));
  const bool is_number = number.find_first_not_of("0123456789") == std::string_view::npos;
  if (!is_number || (number.empty() && kind != key)) return {};
  return std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end() ? std::string_view() : kind;
}

Value or_none(const std::optional<double>& number) { return number ? Value(*number) : Value(); }

}  // namespace

Commit stage_value(const std::string& name, const CheckpointValue& value, const Place& saved) {
  saved.require_own_elements();
  Commit commit;
  const auto error = error_of([&] { commit = value.stage(saved.value()); });
  if (error)
    throw std::runtime_error("its value \"" + name + "\" is " + checkpoint::kind_of(saved.value()) +
                             ", which does not fit the one here: " + *error);
  return commit;
}

bool is_of_ddp(const Place& root) { return root.has("ddp"); }

Contents::Contents(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {
  if (!module_) throw std::logic_error("checkpoint: needs a module");
}

void Contents::add(const std::string& kind, const void* object, std::unique_ptr<Part> part) {
  std::size_t number = 1;
  for (const auto& entry : parts_) {
    if (entry.object == object) throw std::logic_error("checkpoint: keeps this " + kind + " already");
    if (kind_of_key(entry.key) == kind) ++number;
  }
  parts_.push_back({number == 1 ? kind : kind + '_' + std::to_string(number), object, std::move(part)});
}

void Contents::add(const std::string& name, CheckpointValue value) {
  for (const auto& entry : values_)
    if (entry.first == name) throw std::logic_error("checkpoint: keeps a value \"" + name + "\" already");
  values_.emplace_back(name, std::move(value));
}

Contents::State Contents::state(const Progress& progress, Tensors tensors) const {
  auto module = state_of(*module_, tensors);
  State state{parts_state(progress, tensors), std::move(module.tree)};
  state.root.insert("model", module.values);
  auto values = empty_dict();
  for (const auto& [name, value] : values_) values.insert(name, to_write(value.state(), tensors));
  state.root.insert("values", values);
  return state;
}

Dict Contents::parts_state(const Progress& progress, Tensors tensors) const {
  auto root = empty_dict();
  for (const auto& entry : parts_) root.insert(entry.key, entry.part->state(tensors));
  root.insert("epoch", progress.epoch);
  root.insert("step", progress.step);
  root.insert("metric", or_none(progress.metric));
  return root;
}

std::vector<std::string> Contents::fingerprints(const Progress& progress) const {
  auto root = parts_state(progress, Tensors::shared);
  root.insert("model", state_of(*module_, Tensors::shared).values);
  std::vector<std::string> lines;
  for (const auto& entry : root)
    if (kind_of_key(entry.key().toStringRef()) != "sampler")
      lines.push_back(entry.key().toStringRef() + ' ' + std::to_string(hash_of(entry.value())));
  return lines;
}

Progress Contents::progress_in(const Place& root) {
  Progress progress;
  if (const auto epoch = root.find("epoch")) progress.epoch = epoch->integer();
  if (const auto step = root.find("step")) progress.step = step->integer();
  if (const auto metric = root.find("metric"); metric && !metric->is_none()) progress.metric = metric->number();
  return progress;
}

void Contents::require_all_known(const Place& root) const {
  for (const auto& entry : root.dict()) {
    const auto key = entry.key().isString() ? entry.key().toStringRef() : "";
    const auto is_here = [&](const Entry& part) { return part.key == key; };
    if (!kind_of_key(key).empty() && std::none_of(parts_.begin(), parts_.end(), is_here))
      throw std::runtime_error("it holds \"" + key + "\", which the run here has not");
  }
}

// Schedulers come after the optimizers, whose rates some of them set, whatever the order in which they were given.
std::vector<Commit> Contents::stage(const Place& root) const {
  std::vector<Commit> commits, of_schedulers;
  commits.push_back(stage_module(*module_, root.at("model")));
  if (is_of_ddp(root)) require_all_known(root);
  for (const auto& entry : parts_) {
    const bool is_needed = is_of_ddp(root) || kind_of_key(entry.key) == "optimizer";
    if (!is_needed && !root.has(entry.key)) continue;
    auto& target = kind_of_key(entry.key) == "scheduler" ? of_schedulers : commits;
    const auto error = error_of([&] { target.push_back(entry.part->stage(root.at(entry.key))); });
    if (error) throw std::runtime_error(root.has(entry.key) ? entry.key + ": " + *error : *error);
  }
  std::move(of_schedulers.begin(), of_schedulers.end(), std::back_inserter(commits));
  const auto values = root.find("values");
  for (const auto& [name, value] : values_) {
    const auto saved = values ? values->find(name) : std::nullopt;
    if (!saved) continue;
    commits.push_back(stage_value(name, value, *saved));
  }
  return commits;
}

std::vector<std::string> Contents::remarks(const Place& root) const {
  std::vector<std::string> remarks;
  for (const auto& entry : parts_)
    if (!root.has(entry.key)) remarks.push_back("it has no \"" + entry.key + "\", which begins anew");
  const auto saved = root.find("values");
  const auto has = [&](const std::string& name) { return saved && saved->has(name); };
  for (const auto& [name, value] : values_)
    if (!has(name)) remarks.push_back("it has no value \"" + name + "\", which stays as it is");
  if (!saved) return remarks;
  for (const auto& entry : saved->dict()) {
    const auto name = entry.key().isString() ? entry.key().toStringRef() : "";
    const auto is_here = [&](const auto& value) { return value.first == name; };
    if (std::none_of(values_.begin(), values_.end(), is_here))
      remarks.push_back("it has a value \"" + name + "\", which the run here has not");
  }
  return remarks;
}

}  // namespace ddp::checkpoint
