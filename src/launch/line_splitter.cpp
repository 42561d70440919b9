#include "launch/line_splitter.hpp"

#include <algorithm>

namespace ddp::launch {

void LineSplitter::take(std::string_view bytes) {
  while (!bytes.empty()) {
    if (returned_ && bytes.front() != '\n') line_.clear();
    returned_ = false;
    const auto end = bytes.find_first_of(wants_updates_ ? "\n\r" : "\n");
    const auto size = std::min({end, bytes.size(), kLongest - line_.size()});
    line_.append(bytes.substr(0, size));
    bytes.remove_prefix(size);
    if (size != end) {
      if (line_.size() == kLongest) put(false);
      continue;
    }
    returned_ = bytes.front() == '\r';
    bytes.remove_prefix(1);
    if (!returned_) {
      put(false);
    } else if (bytes.empty() || bytes.front() != '\n') {
      put(true);
    }
  }
}

void LineSplitter::finish() {
  if (!line_.empty() && !returned_) put(false);
}

void LineSplitter::put(bool is_update) {
  if (!is_update || !line_.empty()) on_line_(line_, is_update);
  if (!is_update) line_.clear();
}

}  // namespace ddp::launch
