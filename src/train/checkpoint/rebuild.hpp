#pragma once
/// rebuild.hpp: the functions and classes by which a file of torch.save() makes tensors and some plain values.

#include <string>
#include <vector>

#include "train/checkpoint/unpickler.hpp"

namespace ddp::checkpoint {

/// Whether a file may name it: one of these functions, a class of storages, or a dtype.
bool is_known_name(const std::string& name);

/// Errors: std::runtime_error for another class than a storage's.
at::ScalarType dtype_of_storage(const std::string& name);

/// What the function or class `name` makes of `arguments`. No memory is taken: tensors lie in their storages, within
/// their bounds. Errors: std::runtime_error
Value rebuild(const std::string& name, const std::vector<PickleItem>& arguments);

}  // namespace ddp::checkpoint
