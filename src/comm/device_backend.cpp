#include "comm/device_backend.hpp"

#include <mutex>
#include <vector>

namespace ddp::comm {
namespace {

struct Known {
  std::mutex mutex;
  std::vector<std::shared_ptr<const DeviceBackend>> backends;
};

Known& known() {
  static auto* const all = [] {
    auto* const made = new Known;  // never destroyed: works may still be asked for their ends while the process exits
    if constexpr (kHasNccl) made->backends.push_back(nccl_device_backend());
    return made;
  }();
  return *all;
}

}  // namespace

std::shared_ptr<const DeviceBackend> device_backend(std::string_view name) {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  for (const auto& backend : all.backends)
    if (backend->name() == name) return backend;
  return nullptr;
}

void add_device_backend(std::shared_ptr<const DeviceBackend> backend) {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  all.backends.push_back(std::move(backend));
}

}  // namespace ddp::comm
