#include "start/spawn_ticket.hpp"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace ddp::start {
namespace {

constexpr std::size_t kMostCalls = 1'000'000;

std::ostream& operator<<(std::ostream& words, const SpawnPast& past) {
  return words << ' ' << static_cast<int>(past.how) << ' ' << past.rank << ' ' << past.exit_code << ' ' << past.signal;
}

std::istream& operator>>(std::istream& words, SpawnPast& past) {
  int how = 0;
  words >> how >> past.rank >> past.exit_code >> past.signal;
  past.how = static_cast<SpawnPast::How>(how);
  return words;
}

}  // namespace

std::string SpawnTicket::text() const {
  std::ostringstream words;
  words << parent << ' ' << local_rank << ' ' << report << ' ' << place << ' ' << number;
  for (const auto& [other, pasts] : ended) {
    words << ' ' << other << ' ' << pasts.size();
    for (const auto& past : pasts) words << past;
  }
  return words.str();
}

std::optional<SpawnTicket> SpawnTicket::parse(const std::string& text) {
  std::istringstream words(text);
  SpawnTicket ticket;
  words >> ticket.parent >> ticket.local_rank >> ticket.report >> ticket.place >> ticket.number;
  if (!words || ticket.local_rank < 0 || ticket.report <= STDERR_FILENO || ticket.number < 1) return std::nullopt;
  std::uint64_t other = 0;
  for (std::size_t calls = 0; words >> std::ws && !words.eof();) {
    if (!(words >> other >> calls) || calls > kMostCalls) return std::nullopt;
    auto& pasts = ticket.ended[other];
    for (SpawnPast past; pasts.size() < calls && words >> past;) pasts.push_back(past);
    if (pasts.size() < calls) return std::nullopt;
  }
  return ticket;
}

std::optional<SpawnTicket> SpawnTicket::of_this_process() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr) return std::nullopt;
  const auto ticket = parse(text);
  // What a rank starts has the rank's variables, too, and another parent.
  return ticket && ticket->parent == ::getppid() ? ticket : std::nullopt;
}

}  // namespace ddp::start
