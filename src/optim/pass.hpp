#pragma once
/// pass.hpp: one pass over the memory of many parameters.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <vector>

#include "optim/update_rule.hpp"

namespace ddp::optim {

/// A parameter's memory, its gradient's and its state's, all dense and alike. float or double.
struct Piece {
  at::ScalarType dtype;
  std::byte* parameter;
  const std::byte* gradient;
  std::array<std::byte*, kMaxStates> state;  ///< null: not needed
  std::size_t count;                         ///< elements
  std::size_t step;                          ///< which of the pass's steps
};

/// Parameter and gradient of `next` lie behind those of `piece`, which takes the same step.
bool follows(const Piece& piece, const Piece& next);
/// The same for what is beside them.
bool state_follows(const Piece& piece, const Piece& next);

/// Updates all pieces, which do not overlap, by LibTorch's threads. Pieces that follow each other are one run of
/// memory.
void run_pass(const std::vector<Piece>& pieces, const std::vector<Step>& steps);

}  // namespace ddp::optim
