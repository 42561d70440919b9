#include "comm/own_report.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/phase.hpp"
#include "base/thread_stack.hpp"
#include "comm/group_table.hpp"

namespace ddp::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr StackLimits kStack{.frames = 16, .time = milliseconds(200)};

milliseconds since(Clock::time_point time) { return std::chrono::duration_cast<milliseconds>(Clock::now() - time); }

/// The one whose work the others wait for: of the phase, else of the latest call, else the main one.
pid_t training_thread(const FlightRecorder& recorder) {
  const auto process = ::getpid();
  for (const auto thread : {*current_phase() != '\0' ? phase_thread() : 0, recorder.caller()})
    if (thread != 0 && sample_thread({process, thread})) return thread;
  return process;
}

/// "in send to rank 0, message 3"; empty: in none
std::string open_message(const FlightRecorder& recorder) {
  for (const auto& one : recorder.calls())
    if (one.call.number == 0 && !one.ended) return "in " + one.call.description();
  return {};
}

/// What is called before main() or before a thread's function is of no use to anybody.
void end_at_the_program(std::vector<std::string>& stack) {
  const auto begin = std::find_if(stack.begin(), stack.end(), [](const auto& frame) {
    return frame.starts_with("main in ") || frame.starts_with("start_thread in ");
  });
  if (begin == stack.end()) return;
  stack.erase(begin->starts_with("main") ? begin + 1 : begin, stack.end());
}

/// Of several groups the first: a thread waits in one.
std::string waited_in_elsewhere(const FlightRecorder& here) {
  std::string text;
  GroupTable::of_process().for_each([&](const GroupRecord& group) {
    if (!text.empty() || &group.recorder() == &here) return;
    if (const auto call = group.recorder().waited_in())
      text = "in " + call->description() + " of the group of ranks " + listed(group.ranks());
  });
  return text;
}

void look_at_thread(RankReport& report, pid_t thread) {
  const auto state = hindrance_of({::getpid(), thread});  // before the stack, for which the thread is interrupted
  report.hindrance = state.hindrance;
  report.thread = described(state);
  auto stack = stack_of(thread, kStack);
  report.stack = std::move(stack.frames);
  end_at_the_program(report.stack);
  if (report.stack.empty()) report.stack.push_back("(no stack: " + stack.missing + ")");
}

}  // namespace

RankReport own_report(const FlightRecorder& recorder, std::uint64_t number) {
  RankReport report;
  report.status = recorder.status();
  report.entered = recorder.entered();
  report.step = recorder.step();
  report.phase = current_phase();
  if (!report.phase.empty()) report.in_phase = since(phase_began());
  report.data_used_up = data_used_up();
  if (const auto made = recorder.call(number)) {
    report.call = MadeCall{number, made->call.kind(), made->call.description()};
    report.in_call = since(made->call.queued);
    report.works_for_all = made->call.meeting == Meeting::alone && !made->ended;
  }
  const bool takes_part = number > 0 && report.entered >= number;
  if (!takes_part) report.elsewhere = open_message(recorder);
  if (report.elsewhere.empty()) report.elsewhere = waited_in_elsewhere(recorder);
  const bool is_to_look = !takes_part && (number > 0 || report.elsewhere.empty());
  if (is_to_look || report.works_for_all) look_at_thread(report, training_thread(recorder));
  return report;
}

}  // namespace ddp::comm
