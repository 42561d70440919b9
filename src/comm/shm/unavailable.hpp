#pragma once
/// unavailable.hpp: the one error of what lies under the shared-memory backend.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace ddp::comm::shm {

/// Why shared memory cannot be used here, in one line without a full stop. Where nothing was handed out
/// yet the ranks take another backend and tell this line.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// "1.5 MB" of a number of bytes; MB are 2^20 bytes here, as in the library's options.
std::string size_text(std::uint64_t bytes);

}  // namespace ddp::comm::shm
