#include "ddp/run.hpp"

#include <exception>
#include <string>

#include "base/exit_code.hpp"
#include "base/last_words.hpp"
#include "comm/sessions.hpp"
#include "comm/text_of.hpp"
#include "ddp/error.hpp"

namespace ddp {
namespace {

std::string with_rank(const std::string& text) {
  const auto origin = comm::latest_origin();
  if (origin.rank < 0) return text;
  return "rank " + std::to_string(origin.rank) + " of " + std::to_string(origin.world_size) + ": " + text;
}

// Once the ranks have met: before, nobody holds anybody up.
bool is_a_stall(const Error& error) {
  if (comm::latest_origin().rank < 0) return false;
  return dynamic_cast<const TimeoutError*>(&error) != nullptr ||
         dynamic_cast<const CallMismatchError*>(&error) != nullptr;
}

// Publishes the exception in flight and puts it out; returns the exit code.
int report_current_exception() {
  try {
    throw;
  } catch (const PeerLostError& error) {
    comm::fail_all(error.what());
    const auto peer = error.peer() < 0 ? std::string("another rank") : "rank " + std::to_string(error.peer());
    log::put_last_words(std::string(error.what()) + " (this rank ends because of " + peer + ')');
    return kLostPeerExitCode;
  } catch (const Error& error) {
    comm::fail_all(error.what());
    log::put_last_words(error.origin().rank >= 0 ? error.what() : with_rank(error.what()));
    if (is_a_stall(error)) return kStalledExitCode;
  } catch (...) {
    const auto text = comm::text_of(std::current_exception());
    comm::fail_all(text);
    log::put_last_words(with_rank(text));
  }
  return 1;
}

}  // namespace

int run(const std::function<void()>& body) {
  int code = 0;
  try {
    body();
  } catch (...) {
    code = report_current_exception();
  }
  comm::leave_all();
  return code;
}

}  // namespace ddp
