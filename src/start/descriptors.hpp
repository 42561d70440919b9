#pragma once
/// descriptors.hpp: which file descriptors a process hands on.

#include <vector>

#include "base/descriptor.hpp"

namespace ddp::start {

/// Opens /dev/null for each of 0, 1, 2 that is closed, so that nothing else can land there.
void open_missing_stdio();

/// Makes `fd` /dev/null.
void redirect_to_null(int fd);

/// Every descriptor from `first` on will not survive exec.
void close_on_exec_from(int first);
/// Closes every descriptor but 0, 1, 2 and `kept`.
void close_others(std::vector<int> kept);

/// `fd` will survive exec.
void keep_over_exec(int fd);

}  // namespace ddp::start
