#include "launch/say.hpp"

#include <poll.h>
#include <unistd.h>

#include <string>

namespace ddp::launch {
namespace {

int where = STDERR_FILENO;

}  // namespace

void say(std::string_view text) {
  std::string line = "ddprun: ";
  line.append(text).append("\n");
  // Whoever does not read must not keep the launcher from its work.
  static bool is_read = true;
  constexpr int kPatienceMs = 1000;
  pollfd room{where, POLLOUT, 0};
  is_read = ::poll(&room, 1, is_read ? kPatienceMs : 0) == 1;
  if (!is_read) return;
  // Where standard error is gone nobody is left to be told.
  [[maybe_unused]] const ssize_t written = ::write(where, line.data(), line.size());
}

SayThrough::SayThrough(int descriptor) : before_(where) { where = descriptor; }
SayThrough::~SayThrough() { where = before_; }

}  // namespace ddp::launch
