#pragma once
/// pt_file.hpp: a tree of values as the bytes of a .pt file, as torch.save() writes and torch.load() reads them.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/checkpoint/value.hpp"

namespace ddp::checkpoint {

/// The tensors of a module and its submodules, by their names there.
struct ModuleTree {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<std::pair<std::string, ModuleTree>> children;
};

/// Takes the bytes as they come; does not throw.
using Sink = std::function<void(std::string_view)>;

struct PtOptions {
  bool is_sealed = false;              ///< the bytes get a seal: without it, they are damaged
  const ModuleTree* module = nullptr;  ///< for LibTorch's torch::load()
};

/// Python's torch.load(weights_only=True) gives `root`. torch::load() into a module of `module`'s names reads that one,
/// if there is any, from the same bytes; not (false) where a name has other characters than printable ASCII, quotes or
/// backslashes, or a tensor has a dtype that LibTorch's reader does not know (float8, uint16 and more).
/// Tensors: on the CPU, dense, as whole storages. Errors: std::runtime_error for values that Python would not read.
bool write_pt(const Value& root, const PtOptions& options, const Sink& sink);

/// What the bytes of a .pt file hold. Tensors lie in `bytes`, which they keep.
/// Errors: std::runtime_error for anything that is not such a file, or damaged.
Value read_pt(const std::shared_ptr<std::string>& bytes);

}  // namespace ddp::checkpoint
