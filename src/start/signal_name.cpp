#include "start/signal_name.hpp"

#include <cstring>

namespace ddp::start {

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

}  // namespace ddp::start
