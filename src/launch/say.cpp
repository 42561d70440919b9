#include "launch/say.hpp"

#include <unistd.h>

#include <string>

namespace ddp::launch {
namespace {

int where = STDERR_FILENO;

}  // namespace

void say(std::string_view text) {
  std::string line = "ddprun: ";
  line.append(text).append("\n");
  // Where standard error is gone nobody is left to be told.
  [[maybe_unused]] const ssize_t written = ::write(where, line.data(), line.size());
}

SayThrough::SayThrough(int descriptor) : before_(where) { where = descriptor; }
SayThrough::~SayThrough() { where = before_; }

}  // namespace ddp::launch
