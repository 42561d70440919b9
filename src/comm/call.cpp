#include "comm/call.hpp"

#include <algorithm>

namespace ddp::comm {
namespace {

/// On one line, and without what a terminal would obey.
std::string printable(std::string text) {
  for (auto& character : text)
    if (static_cast<unsigned char>(character) < ' ' || character == 0x7f) character = '?';
  return text;
}

std::string title(const Call& call) {
  std::string text;
  if (call.peer >= 0)
    text = (call.sends ? "send to rank " : "recv from rank ") + std::to_string(call.peer) + ", message " +
           std::to_string(call.message);
  else
    text = name_of(call.signature.called());
  if (call.number > 0) text += " #" + std::to_string(call.number);
  if (!call.label.empty()) text += " \"" + printable(call.label) + '"';
  return text;
}

}  // namespace

std::string Call::name() const { return title(*this) + (step >= 0 ? ", step " + std::to_string(step) : ""); }

std::string Call::description() const {
  auto text = title(*this);
  if (const auto moved = amount(); !moved.empty()) text += " (" + moved + ')';
  if (step >= 0) text += " in step " + std::to_string(step);
  return text;
}

std::string Call::amount() const {
  const bool is_unknown = signature.called() == Operation::bytes_message && !sends;
  return is_unknown ? "bytes" : signature.amount();
}

namespace {

constexpr std::chrono::milliseconds kYear = std::chrono::hours(24 * 365);

}  // namespace

std::chrono::steady_clock::time_point deadline_in(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + std::min(timeout, kYear);
}

std::chrono::steady_clock::time_point deadline_of(const Call& call, std::chrono::milliseconds timeout) {
  return call.queued + std::min(timeout, kYear);
}

std::string Call::kind() const {
  switch (meeting) {
    case Meeting::plan:
      return std::string("plan ") + name_of(signature.called()) + ' ' + amount();
    case Meeting::roll_call:
    case Meeting::alone:
      return std::string("roll call ") + name_of(signature.called());
    case Meeting::signatures:
      break;
  }
  return "signatures";
}

}  // namespace ddp::comm
