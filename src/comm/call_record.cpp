#include "comm/call_record.hpp"

#include <cstdio>

namespace ddp::comm {

std::string Call::name() const {
  std::string text = operation;
  if (number > 0) text += " #" + std::to_string(number);
  if (!label.empty()) text += " \"" + label + '"';
  if (step >= 0) text += ", step " + std::to_string(step);
  return text;
}

std::string Call::description() const {
  std::string text = operation;
  if (number > 0) text += " #" + std::to_string(number);
  if (!label.empty()) text += " \"" + label + '"';
  if (!amount.empty()) text += " (" + amount + ')';
  if (step >= 0) text += " in step " + std::to_string(step);
  return text;
}

std::string Call::kind() const {
  switch (meeting) {
    case Meeting::plan:
      return "plan " + operation + ' ' + amount;
    case Meeting::roll_call:
      return "roll call";
    case Meeting::signatures:
      break;
  }
  return "signatures";
}

void CallRecord::mark_step(std::int64_t step) noexcept {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

Call CallRecord::next(std::string operation, std::string amount, std::string label) const {
  const std::lock_guard lock(mutex_);
  return {entered_ + 1, std::move(operation), std::move(amount), std::move(label), step_};
}

Call CallRecord::enter(std::string operation, std::string amount, std::string label, Meeting meeting) {
  const std::lock_guard lock(mutex_);
  Call call{++entered_, std::move(operation), std::move(amount), std::move(label), step_, -1, meeting};
  auto& place = recent_[call.number % kCallsKept];
  place.call = call;
  place.has_ended = false;
  entered_at_ = std::chrono::steady_clock::now();
  return call;
}

void CallRecord::enter_message(const Call& call) {
  const std::lock_guard lock(mutex_);
  messages_.insert(call.description());
}

void CallRecord::complete(const Call& call) {
  const std::lock_guard lock(mutex_);
  if (call.number == 0) {
    if (const auto found = messages_.find(call.description()); found != messages_.end()) messages_.erase(found);
    return;
  }
  if (entry(call.number).call.number == call.number) recent_[call.number % kCallsKept].has_ended = true;
  if (!last_completed_ || last_completed_->number < call.number) last_completed_ = call;
}

std::uint64_t CallRecord::entered() const {
  const std::lock_guard lock(mutex_);
  return entered_;
}

std::vector<Call> CallRecord::first_open(std::size_t before) const {
  const std::lock_guard lock(mutex_);
  const std::uint64_t oldest = entered_ < kCallsKept ? 1 : entered_ - kCallsKept + 1;
  auto first = oldest;
  while (first <= entered_ && entry(first).has_ended) ++first;
  std::vector<Call> calls;
  for (auto number = first; first <= entered_ && number >= oldest && calls.size() <= before; --number)
    calls.push_back(entry(number).call);
  return calls;
}

std::optional<std::int64_t> CallRecord::step_of(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (number == entered_ + 1) return step_ >= 0 ? std::optional(step_) : std::nullopt;
  if (number == 0 || number > entered_ || number + kCallsKept <= entered_) return std::nullopt;
  const auto step = entry(number).call.step;
  return step >= 0 ? std::optional(step) : std::nullopt;
}

std::string CallRecord::status() const {
  const std::lock_guard lock(mutex_);
  std::string text = last_completed_ ? "last completed " + last_completed_->description() : "completed no call yet";
  for (const auto& message : messages_) text += ", waiting in " + message;
  const bool inside = entered_ > 0 && (!last_completed_ || last_completed_->number < entered_);
  if (!inside) {
    text += ", now not in a collective";
    if (step_ >= 0 && (!last_completed_ || last_completed_->step != step_)) text += " in step " + std::to_string(step_);
    return text;
  }
  char seconds[32];
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - entered_at_;
  std::snprintf(seconds, sizeof seconds, "%.1f s", since.count());
  return text + ", now in " + entry(entered_).call.description() + " since " + seconds;
}

}  // namespace ddp::comm
