#include "launch/say.hpp"

#include <unistd.h>

#include <string>

namespace ddp::launch {

void say(std::string_view text) {
  std::string line = "ddprun: ";
  line.append(text).append("\n");
  // Where standard error is gone nobody is left to be told.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace ddp::launch
