#include "train/reducer_memory.hpp"

#include "train/checkpoint/value.hpp"

namespace ddp {

using checkpoint::Place;

c10::IValue value_of(const ReducerMemory& memory) {
  auto order = checkpoint::empty_list(), uses = checkpoint::empty_list();
  for (const auto& name : memory.order) order.push_back(name);
  for (const auto count : memory.uses) uses.push_back(std::int64_t{count});
  auto dict = checkpoint::empty_dict();
  dict.insert("order", order);
  dict.insert("uses", uses);
  dict.insert("samples", memory.samples ? c10::IValue(static_cast<std::int64_t>(*memory.samples)) : c10::IValue());
  return dict;
}

ReducerMemory memory_in(const c10::IValue& value) {
  const Place place(value, "reducer");
  ReducerMemory memory;
  for (const auto& name : place.at("order").items()) memory.order.push_back(name.text());
  for (const auto& count : place.at("uses").items()) memory.uses.push_back(static_cast<std::uint32_t>(count.integer()));
  if (const auto samples = place.at("samples"); !samples.is_none())
    memory.samples = static_cast<std::uint64_t>(samples.integer());
  return memory;
}

}  // namespace ddp
