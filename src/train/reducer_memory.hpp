#pragma once
/// reducer_memory.hpp: what a reducer remembers from its first steps, as a checkpoint keeps it.

#include <ATen/core/ivalue.h>

#include "reduce/reducer.hpp"

namespace ddp {

c10::IValue value_of(const ReducerMemory& memory);
/// Errors: std::runtime_error for a value of another kind.
ReducerMemory memory_in(const c10::IValue& value);

}  // namespace ddp
