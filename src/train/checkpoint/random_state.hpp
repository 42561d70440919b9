#pragma once
/// random_state.hpp: where the random numbers of a rank are, which are LibTorch's default generators.

#include "train/checkpoint/parts.hpp"

namespace ddp::checkpoint {

/// The CPU's generator, and that of `device` if it is another; as Python's torch.get_rng_state() has them.
Value random_state(at::Device device);
/// Errors: std::exception for what is no such state.
Commit stage_random_state(at::Device device, const Place& place);

}  // namespace ddp::checkpoint
