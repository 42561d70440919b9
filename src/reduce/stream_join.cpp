#include "reduce/stream_join.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace ddp {

c10::Stream StreamJoin::current() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

void StreamJoin::note() {
  const auto stream = current();
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void StreamJoin::join() {
  const auto waiting = current();
  for (const auto& stream : streams_) {
    if (stream == waiting) continue;
    c10::Event done(device_.type());
    done.record(stream);
    done.block(waiting);
  }
  streams_.clear();
}

}  // namespace ddp
