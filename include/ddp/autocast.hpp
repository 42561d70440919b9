#pragma once
/// autocast.hpp: mixed precision, as torch.autocast: LibTorch computes matrix products and convolutions in a half type
/// and keeps in float what needs it.
///
///     {
///       auto guard = ddp::autocast(group->device());
///       loss = cross_entropy(model(batch.data), batch.target);
///     }
///     loss.backward();
///
/// Parameters and their gradients stay what they are. With bfloat16 nothing else is needed; with half, small gradients
/// would vanish: see grad_scaler.hpp.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace ddp {

struct AutocastOptions {
  /// Half or bfloat16; unset: LibTorch's choice for the device, on the CPU bfloat16, on CUDA half.
  std::optional<at::ScalarType> dtype = std::nullopt;
  bool enabled = true;  ///< false: full precision inside, where another guard lives outside
  /// A parameter that is used several times is converted once; unset: as it was. Off where the guard holds a forward
  /// without gradients before one with them.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// What autocast() returns. Threads: the one that made it, where alone it counts, in a backward's threads too.
/// Lifetime: guards end in the reverse order of their beginning.
class [[nodiscard]] Autocast {
 public:
  Autocast(at::DeviceType device, const AutocastOptions& options);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  bool had_cache_;
  at::ScalarType dtype_before_;
};

/// While it lives, operators on that kind of device run in mixed precision. Errors: std::invalid_argument for another
/// dtype, and for a device for which LibTorch has no such mode.
inline Autocast autocast(at::DeviceType device, const AutocastOptions& options = {}) { return {device, options}; }
inline Autocast autocast(at::Device device, const AutocastOptions& options = {}) { return {device.type(), options}; }

}  // namespace ddp
