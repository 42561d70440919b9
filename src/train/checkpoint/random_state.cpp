#include "train/checkpoint/random_state.hpp"

#include <ATen/Context.h>

#include <mutex>
#include <vector>

namespace ddp::checkpoint {
namespace {

std::vector<at::Device> devices_of(at::Device device) {
  std::vector<at::Device> devices{at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  return devices;
}

std::string key_of(at::Device device) { return at::DeviceTypeName(device.type(), /*lower_case=*/true); }

}  // namespace

Value random_state(at::Device device) {
  auto states = empty_dict();
  for (const auto& one : devices_of(device)) {
    auto generator = at::globalContext().defaultGenerator(one);
    const std::scoped_lock lock(generator.mutex());
    states.insert(key_of(one), generator.get_state());
  }
  return states;
}

// A copy of the generator takes the state first, which checks it.
Commit stage_random_state(at::Device device, const Place& place) {
  std::vector<std::pair<at::Generator, at::Tensor>> staged;
  for (const auto& one : devices_of(device)) {
    const auto found = place.find(key_of(one));
    if (!found) continue;
    auto generator = at::globalContext().defaultGenerator(one);
    const auto state = found->tensor().clone();
    const std::scoped_lock lock(generator.mutex());
    generator.clone().set_state(state);
    staged.emplace_back(generator, state);
  }
  return [staged = std::move(staged)]() mutable {
    for (auto& [generator, state] : staged) {
      const std::scoped_lock lock(generator.mutex());
      generator.set_state(state);
    }
  };
}

}  // namespace ddp::checkpoint
