#include "ddp/error.hpp"

namespace ddp {
namespace {

std::string text_of(Origin origin, std::string_view part, std::string_view what, std::string_view remedy) {
  std::string text;
  if (origin.rank >= 0)
    text = "rank " + std::to_string(origin.rank) + " of " + std::to_string(origin.world_size) + ": ";
  text.append(part).append(": ").append(what);
  if (!remedy.empty()) text.append("; ").append(remedy);
  return text;
}

}  // namespace

Error::Error(Origin origin, std::string_view part, std::string_view what, std::string_view remedy)
    : std::runtime_error(text_of(origin, part, what, remedy)),
      origin_(origin),
      happening_(text_of({}, part, what, {})) {}

PeerLostError::PeerLostError(Origin origin, std::string_view part, std::string_view what, std::string_view remedy,
                             int peer)
    : CommError(origin, part, what, remedy), peer_(peer) {}

}  // namespace ddp
