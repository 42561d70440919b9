#include "start/spawn_ticket.hpp"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace ddp::start {

std::string SpawnTicket::text() const {
  std::ostringstream words;
  words << parent << ' ' << local_rank << ' ' << report << ' ' << place << ' ' << number;
  for (const auto& [other, calls] : ended) words << ' ' << other << ' ' << calls;
  return words.str();
}

std::optional<SpawnTicket> SpawnTicket::parse(const std::string& text) {
  std::istringstream words(text);
  SpawnTicket ticket;
  words >> ticket.parent >> ticket.local_rank >> ticket.report >> ticket.place >> ticket.number;
  if (!words || ticket.local_rank < 0 || ticket.report <= STDERR_FILENO || ticket.number < 1) return std::nullopt;
  std::uint64_t place = 0;
  for (int calls = 0; words >> place >> calls;) ticket.ended[place] = calls;
  return words.eof() ? std::optional(ticket) : std::nullopt;
}

std::optional<SpawnTicket> SpawnTicket::of_this_process() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr) return std::nullopt;
  const auto ticket = parse(text);
  // What a rank starts has the rank's variables, too, and another parent.
  return ticket && ticket->parent == ::getppid() ? ticket : std::nullopt;
}

}  // namespace ddp::start
