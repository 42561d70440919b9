#include "launch/pseudo_terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace ddp::launch {
namespace {

void require(bool ok) {
  if (!ok) throw std::system_error(errno, std::generic_category(), "cannot make a terminal for a rank");
}

}  // namespace

Channel make_pseudo_terminal(int stream) {
  Channel channel;
  channel.from = Descriptor(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  require(channel.from.get() >= 0 && ::grantpt(channel.from.get()) == 0 && ::unlockpt(channel.from.get()) == 0);
  char name[64];
  require(::ptsname_r(channel.from.get(), name, sizeof name) == 0);
  channel.to = Descriptor(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  require(channel.to.get() >= 0);
  termios modes{};
  require(::tcgetattr(channel.to.get(), &modes) == 0);
  ::cfmakeraw(&modes);
  require(::tcsetattr(channel.to.get(), TCSANOW, &modes) == 0);
  winsize size{};
  if (::ioctl(stream, TIOCGWINSZ, &size) == 0) ::ioctl(channel.to.get(), TIOCSWINSZ, &size);
  return channel;
}

}  // namespace ddp::launch
