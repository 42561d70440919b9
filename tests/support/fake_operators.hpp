#pragma once
/// fake_operators.hpp: LibTorch's operators on the fake accelerator.

#include <torch/library.h>

namespace ddp::testing {

c10::Allocator& fake_device_allocator();
/// Into a library of aten's for PrivateUse1.
void register_fake_operators(torch::Library& library);
/// All others, into a library of everything.
void register_fake_fallback(torch::Library& library);

}  // namespace ddp::testing
