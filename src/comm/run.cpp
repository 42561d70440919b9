#include "ddp/run.hpp"

#include <c10/util/Type.h>
#include <cxxabi.h>

#include <exception>
#include <string>
#include <typeinfo>

#include "base/exit_code.hpp"
#include "base/last_words.hpp"
#include "comm/run_body.hpp"
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

std::string type_in_flight() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  return type == nullptr ? "an unknown type" : c10::demangle(type->name());
}

// Publishes the exception in flight and puts it out.
comm::Thrown report_current_exception() {
  comm::Thrown thrown{.text = {}, .type = type_in_flight()};
  try {
    throw;
  } catch (const PeerLostError& error) {
    thrown.text = error.what();
    comm::fail_all(error.what());
    const auto peer = error.peer() < 0 ? std::string("another rank") : "rank " + std::to_string(error.peer());
    log::put_last_words(std::string(error.what()) + " (this rank ends because of " + peer + ')');
    thrown.exit_code = kLostPeerExitCode;
  } catch (const Error& error) {
    thrown.text = error.what();
    comm::fail_all(error.what());
    log::put_last_words(error.origin().rank >= 0 ? error.what() : with_rank(error.what()));
    if (is_a_stall(error)) thrown.exit_code = kStalledExitCode;
  } catch (...) {
    thrown.text = comm::text_of(std::current_exception());
    comm::fail_all(thrown.text);
    log::put_last_words(with_rank(thrown.text));
  }
  return thrown;
}

}  // namespace

int comm::run_body(const std::function<void()>& body, const std::function<void(const Thrown&)>& on_exception) {
  int code = 0;
  try {
    body();
  } catch (...) {
    const auto thrown = report_current_exception();
    on_exception(thrown);
    code = thrown.exit_code;
  }
  leave_all();
  return code;
}

int run(const std::function<void()>& body) {
  return comm::run_body(body, [](const comm::Thrown&) {});
}

}  // namespace ddp
