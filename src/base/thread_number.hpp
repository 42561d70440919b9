#pragma once
/// thread_number.hpp: this thread as the kernel counts, at the price of a look instead of a system call.

#include <sys/types.h>

namespace ddp {

pid_t own_thread_number() noexcept;

}  // namespace ddp
