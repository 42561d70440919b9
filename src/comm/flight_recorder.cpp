#include "comm/flight_recorder.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "base/phase.hpp"
#include "base/thread_number.hpp"
#include "comm/watch_frame.hpp"

namespace ddp::comm {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t now() { return Clock::now().time_since_epoch().count(); }
Clock::time_point time_of(std::int64_t count) { return Clock::time_point(Clock::duration(count)); }

std::string seconds_since(Clock::time_point time) {
  char text[32];
  const std::chrono::duration<double> since = Clock::now() - time;
  std::snprintf(text, sizeof text, "%.1f s", since.count());
  return text;
}

void store_if_greater(std::atomic<std::uint64_t>& value, std::uint64_t candidate) {
  auto seen = value.load();
  while (seen < candidate && !value.compare_exchange_weak(seen, candidate)) {
  }
}

RecordedCall recorded(const TimedRecord& record) {
  RecordedCall call{record.call.call(record.ticket), record.call.phase, {}, {}};
  if (record.started != 0) call.started = time_of(record.started);
  if (record.ended != 0) call.ended = time_of(record.ended);
  return call;
}

}  // namespace

FlightRecorder::FlightRecorder() : places_(std::make_unique<Place[]>(kKept)) {}

std::int64_t FlightRecorder::step() const noexcept {
  const auto marked = marked_step();
  return marked >= 0 ? marked : step_.load(std::memory_order_relaxed);
}

void FlightRecorder::enter(Call& call, Start start) noexcept {
  static_assert(sizeof(Place) == 3 * 64);
  caller_.store(own_thread_number(), std::memory_order_relaxed);
  if (call.peer < 0) call.number = ++entered_;
  call.step = step();
  call.ticket = tickets_++;
  call.queued = Clock::now();
  const CallRecord record(call);
  const auto words = std::bit_cast<std::array<std::uint64_t, kWords>>(record);
  // A reader that sees a word of this call sees the odd version too, or a later one.
  auto& to = place(call.ticket);
  auto seen = to.version.load(std::memory_order_relaxed);
  const bool is_free =
      seen % 2 == 0 && seen <= 2 * call.ticket;  // else a thread was held up for kKept calls: one is lost
  if (!is_free || !to.version.compare_exchange_strong(seen, 2 * call.ticket + 1)) return;
  to.started.store(start == Start::at_once ? record.queued : 0, std::memory_order_release);
  to.ended.store(0, std::memory_order_release);
  for (std::size_t i = 0; i < kWords; ++i) to.words[i].store(words[i], std::memory_order_release);
  to.version.store(2 * call.ticket + 2, std::memory_order_release);
}

// A place that serves a later call by now keeps what that one has.
void FlightRecorder::start(std::uint64_t ticket) noexcept {
  auto& of = place(ticket);
  if (of.version.load(std::memory_order_acquire) == 2 * ticket + 2) of.started.store(now());
}

void FlightRecorder::complete(const Call& call) noexcept {
  auto& of = place(call.ticket);
  if (of.version.load(std::memory_order_acquire) == 2 * call.ticket + 2) of.ended.store(now());
  if (call.number > 0) store_if_greater(last_completed_, call.number);
}

bool FlightRecorder::read(std::uint64_t ticket, TimedRecord& into) const noexcept {
  auto& from = place(ticket);
  if (from.version.load(std::memory_order_acquire) != 2 * ticket + 2) return false;
  std::array<std::uint64_t, kWords> words;
  for (std::size_t i = 0; i < kWords; ++i) words[i] = from.words[i].load(std::memory_order_acquire);
  into.ticket = ticket;
  into.started = from.started.load();
  into.ended = from.ended.load();
  if (from.version.load() != 2 * ticket + 2) return false;
  into.call = std::bit_cast<CallRecord>(words);
  return true;
}

std::vector<RecordedCall> FlightRecorder::calls() const {
  std::vector<RecordedCall> known;
  for_each([&](const TimedRecord& record) { known.push_back(recorded(record)); });
  return known;
}

std::vector<Call> FlightRecorder::first_open(std::size_t before) const {
  auto known = calls();
  std::erase_if(known, [](const auto& recorded) { return recorded.call.number == 0; });
  const auto open = std::find_if(known.begin(), known.end(), [](const auto& recorded) { return !recorded.ended; });
  std::vector<Call> found;
  if (open == known.end()) return found;
  for (auto i = open - known.begin(); i >= 0 && found.size() <= before; --i)
    found.push_back(known[static_cast<std::size_t>(i)].call);
  return found;
}

std::optional<Call> FlightRecorder::oldest_open() const {
  std::optional<Call> oldest;
  for_each([&](const TimedRecord& record) {
    if (!oldest && record.ended == 0) oldest = record.call.call(record.ticket);
  });
  return oldest;
}

std::optional<Call> FlightRecorder::waited_in() const {
  auto open = first_open(0);
  if (open.empty() || open[0].number != waits_) return std::nullopt;
  return std::move(open[0]);
}

std::optional<RecordedCall> FlightRecorder::call(std::uint64_t number) const {
  std::optional<RecordedCall> found;
  for_each([&](const TimedRecord& record) {
    if (number > 0 && record.call.number == number) found = recorded(record);
  });
  return found;
}

std::optional<std::int64_t> FlightRecorder::step_of(std::uint64_t number) const {
  std::optional<std::int64_t> step;
  if (number == entered_ + 1) {
    step = this->step();
  } else if (const auto recorded = call(number)) {
    step = recorded->call.step;
  }
  return step && *step >= 0 ? step : std::nullopt;
}

std::string FlightRecorder::status() const {
  const RecordedCall *last = nullptr, *newest = nullptr;
  const auto known = calls();
  const auto last_completed = last_completed_.load();
  std::string messages;
  for (const auto& recorded : known) {
    if (recorded.call.number > 0) newest = &recorded;
    if (recorded.call.number == last_completed && last_completed > 0) last = &recorded;
    if (recorded.call.number == 0 && !recorded.ended) messages += ", waiting in " + recorded.call.description();
  }
  std::string text = "completed no call yet";
  if (last != nullptr)
    text = "last completed " + last->call.description();
  else if (last_completed > 0)
    text = "last completed call #" + std::to_string(last_completed);
  text += messages;
  if (newest != nullptr && newest->call.number > last_completed)
    return text + (newest->call.meeting == Meeting::alone ? ", now works for all in " : ", now in ") +
           newest->call.description() + " since " + seconds_since(newest->call.queued);
  text += ", now not in a collective";
  const auto step = this->step();
  if (step >= 0 && (last == nullptr || last->call.step != step)) text += " in step " + std::to_string(step);
  if (const std::string phase = current_phase(); !phase.empty())
    text += ", in \"" + phase + "\" since " + seconds_since(phase_began());
  else if (data_used_up())
    text += ", after its last batch";
  return text;
}

}  // namespace ddp::comm
