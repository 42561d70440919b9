#include "comm/call_record.hpp"

#include <algorithm>

#include "base/phase.hpp"
#include "comm/watch_frame.hpp"

namespace ddp::comm {
namespace {

// Numbers, not characters: kNone is negative.
std::int64_t widened(std::int8_t number) { return number; }

}  // namespace

CallRecord::CallRecord(const Call& made)
    : number(made.number),
      step(made.step),
      queued(made.queued.time_since_epoch().count()),
      message(made.message),
      phase(current_phase()),
      peer(made.peer),
      root(static_cast<std::int32_t>(made.signature.root)),
      operation(static_cast<std::int8_t>(made.signature.operation)),
      reduce_op(static_cast<std::int8_t>(made.signature.reduce_op)),
      dtype(static_cast<std::int8_t>(made.signature.dtype)),
      dimensions(static_cast<std::int8_t>(std::min<std::int64_t>(made.signature.dimensions, kDimensions))),
      first_differs(made.signature.first_differs != 0),
      meeting(static_cast<std::uint8_t>(made.meeting)),
      sends(made.sends) {
  std::copy_n(made.signature.sizes.begin(), kDimensions, sizes.begin());
  for (std::size_t i = kDimensions; static_cast<std::int64_t>(i) < made.signature.dimensions; ++i)
    sizes.back() *= made.signature.sizes[i];
  label_bytes = static_cast<std::uint8_t>(watch::copy_bounded(made.label, label));
}

Call CallRecord::call(std::uint64_t ticket) const {
  Call made;
  auto& signature = made.signature;
  signature.operation = widened(operation);
  signature.reduce_op = widened(reduce_op);
  signature.dtype = widened(dtype);
  signature.root = root;
  signature.dimensions = widened(dimensions);
  signature.first_differs = first_differs;
  signature.sizes.fill(1);
  std::copy(sizes.begin(), sizes.end(), signature.sizes.begin());
  made.label.assign(label_text());
  made.meeting = static_cast<Meeting>(meeting);
  made.peer = peer;
  made.sends = sends != 0;
  made.message = message;
  made.number = number;
  made.step = step;
  made.ticket = ticket;
  made.queued = std::chrono::steady_clock::time_point(std::chrono::steady_clock::duration(queued));
  return made;
}

}  // namespace ddp::comm
