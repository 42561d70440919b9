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

void CallRecord::mark_step(std::int64_t step) noexcept {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

Call CallRecord::next(std::string operation, std::string amount, std::string label) const {
  const std::lock_guard lock(mutex_);
  return {entered_ + 1, std::move(operation), std::move(amount), std::move(label), step_};
}

Call CallRecord::enter(std::string operation, std::string amount, std::string label) {
  const std::lock_guard lock(mutex_);
  Call call{++entered_, std::move(operation), std::move(amount), std::move(label), step_};
  steps_[call.number % kStepsKept] = step_;
  last_entered_ = call;
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
  if (!last_completed_ || last_completed_->number < call.number) last_completed_ = call;
}

std::uint64_t CallRecord::entered() const {
  const std::lock_guard lock(mutex_);
  return entered_;
}

std::optional<std::int64_t> CallRecord::step_of(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (number == 0 || number > entered_ || number + kStepsKept <= entered_) return std::nullopt;
  const auto step = steps_[number % kStepsKept];
  return step >= 0 ? std::optional(step) : std::nullopt;
}

std::string CallRecord::status() const {
  const std::lock_guard lock(mutex_);
  std::string text = last_completed_ ? "last completed " + last_completed_->description() : "completed no call yet";
  for (const auto& message : messages_) text += ", waiting in " + message;
  const bool inside = last_entered_ && (!last_completed_ || last_completed_->number < last_entered_->number);
  if (!inside) {
    text += ", now not in a collective";
    if (step_ >= 0 && (!last_completed_ || last_completed_->step != step_)) text += " in step " + std::to_string(step_);
    return text;
  }
  char seconds[32];
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - entered_at_;
  std::snprintf(seconds, sizeof seconds, "%.1f s", since.count());
  return text + ", now in " + last_entered_->description() + " since " + seconds;
}

}  // namespace ddp::comm
