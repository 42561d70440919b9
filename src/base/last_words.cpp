#include "base/last_words.hpp"

#include <cstdio>

#include "base/log_speaker.hpp"
#include "ddp/log.hpp"

namespace ddp::log {

void put_last_words(const std::string& text) {
  // One write, so that the ranks' lines do not mix.
  std::fflush(stdout);
  std::fputs((text + '\n').c_str(), stderr);
  std::fflush(stderr);
  if (places_for(Audience::every_rank).file) put(Level::error, text, {.console = false, .file = true});
}

}  // namespace ddp::log
