#include "launch/inspect.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ostream>
#include <string>
#include <vector>

#include "base/inspection_client.hpp"
#include "launch/processes.hpp"
#include "launch/say.hpp"

namespace ddp::launch {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Kind = InspectionReply::Kind;

// A rank answers within milliseconds, or within a second where it has to wait for one that does not.
constexpr milliseconds kForOne{2000}, kForAll{4500};

std::string described(const Process& process) {
  return "process " + std::to_string(process.pid) + " (" + process.name + ")";
}

bool is_foreign(const Process& process) { return ::geteuid() != 0 && process.user != ::geteuid(); }

/// A program's labels reach a terminal: nothing that steers it.
std::string printable(std::string text) {
  const auto steers = [](unsigned char one) { return (one < ' ' && one != '\n') || one == 0x7f; };
  std::ranges::replace_if(text, steers, '?');
  return text;
}

class Inquiry {
 public:
  explicit Inquiry(const Process& asked) : asked_(asked), family_(descendants_of(asked.pid)) {
    family_.insert(family_.begin(), asked);
  }

  /// What somebody tells; empty where nobody does.
  std::string answer() {
    for (const auto& process : family_) {
      if (is_foreign(process)) continue;
      const auto reply = process.is_stopped()
                             ? InspectionReply{Kind::silent}
                             : ask_process({.whom = process.key(), .owner = process.user, .limit = left()});
      if (reply.kind == Kind::answer) return reply.text;
      if (reply.kind == Kind::silent) mute_.push_back(process);
      if (reply.kind == Kind::refused) {
        refusal_ = described(process) + (reply.text.empty() ? " hung up" : " refuses to tell: " + reply.text);
      }
    }
    for (const auto& process : mute_) {
      if (const auto text = answer_of_others(process); !text.empty()) return text;
    }
    return {};
  }

  std::string why_nobody() const {
    if (is_foreign(asked_)) {
      return described(asked_) + " belongs to user " + std::to_string(asked_.user) + ": ask as that user, or as root";
    }
    if (asked_.state == 'Z') return described(asked_) + " has ended, only its parent has not looked yet";
    if (!refusal_.empty()) return refusal_;
    if (!mute_.empty()) return silence_of(mute_.front()) + ", and no other rank of its job answers here";
    if (is_elsewhere()) {
      const auto pid = std::to_string(asked_.pid);
      return described(asked_) + " has a network of its own, a container's perhaps: ask in there, or with nsenter " +
             "--target " + pid + " --net ddprun --inspect " + pid;
    }
    return described(asked_) + " runs, but neither it nor what it has started is a rank in a process group of ddp";
  }

 private:
  static std::string silence_of(const Process& process) {
    const auto who = described(process);
    if (process.state == 't') return who + " is stopped by a debugger";
    if (process.state == 'T') return who + " is stopped (kill -CONT " + std::to_string(process.pid) + " lets it go on)";
    return who + " gives no answer";
  }

  milliseconds left() const {
    return std::clamp(std::chrono::ceil<milliseconds>(end_ - Clock::now()), milliseconds(0), kForOne);
  }

  bool is_elsewhere() const {
    const auto network = namespace_of(std::to_string(asked_.pid), "net");
    return network != 0 && network != namespace_of("self", "net");
  }

  std::string answer_of_others(const Process& mute) const {
    const auto about = mute.key();
    for (const auto& other : inspected_processes()) {
      if (other == about) continue;
      const auto reply = ask_process({.whom = other, .owner = mute.user, .about = about, .limit = left()});
      if (reply.kind != Kind::answer) continue;
      say(silence_of(mute) + "; another rank of its job answers:");
      return reply.text;
    }
    return {};
  }

  const Process asked_;
  const Clock::time_point end_ = Clock::now() + kForAll;
  std::vector<Process> family_;
  std::vector<Process> mute_;  // stopped, or silent for another reason
  std::string refusal_;
};

}  // namespace

bool inspect(pid_t pid, std::ostream& out) {
  const auto asked = find_process(pid);
  if (!asked) {
    say("there is no process " + std::to_string(pid));
    return false;
  }
  Inquiry inquiry(*asked);
  const auto text = inquiry.answer();
  if (text.empty()) {
    say(inquiry.why_nobody());
    return false;
  }
  out << printable(text);
  out.flush();
  return static_cast<bool>(out);
}

}  // namespace ddp::launch
