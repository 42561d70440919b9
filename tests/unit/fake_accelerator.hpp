#pragma once
/// fake_accelerator.hpp: a device in this process's memory that LibTorch takes for an accelerator.

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <string>
#include <vector>

namespace ddp::testing {

/// Its streams only remember what is to be copied without blocking, and do it when another stream waits for them, so
/// that who reads too early reads something else. Its pinned memory is known as such. From the first call of
/// fake_accelerator() on it is this process's accelerator.
inline const c10::Device kFakeDevice(c10::DeviceType::PrivateUse1, 0);

struct FakeAccelerator {
  /// "copy on 1 from pinned", "record 1", "0 waits", "keep for 0": numbers are those of streams.
  std::vector<std::string> notes;
  c10::StreamId current = 0;
  /// How often pageable memory was copied to pinned memory.
  int pinnings = 0;
};
FakeAccelerator& fake_accelerator();

}  // namespace ddp::testing
