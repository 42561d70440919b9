#include "ddp/autocast.hpp"

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>

#include <stdexcept>
#include <string>

namespace ddp {
namespace {

at::ScalarType chosen_dtype(at::DeviceType device, std::optional<at::ScalarType> dtype) {
  if (!at::autocast::is_autocast_available(device))
    throw std::invalid_argument("ddp: LibTorch has no autocast on " + c10::DeviceTypeName(device, true));
  const auto chosen = dtype.value_or(at::autocast::get_autocast_dtype(device));
  if (chosen != at::kHalf && chosen != at::kBFloat16)
    throw std::invalid_argument(std::string("ddp: autocast computes in Half or BFloat16, not in ") +
                                c10::toString(chosen));
  return chosen;
}

}  // namespace

Autocast::Autocast(at::DeviceType device, const AutocastOptions& options) : device_(device) {
  const auto dtype = chosen_dtype(device, options.dtype);
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  had_cache_ = at::autocast::is_autocast_cache_enabled();
  dtype_before_ = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_enabled(device, options.enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_cache_enabled(options.cache_enabled.value_or(had_cache_));
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(had_cache_);
}

}  // namespace ddp
