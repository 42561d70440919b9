#include "comm/dump_content.hpp"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <chrono>

#include "base/phase.hpp"
#include "base/version.hpp"
#include "comm/group_table.hpp"
#include "comm/wire.hpp"

namespace ddp::comm {
namespace {

using std::chrono::nanoseconds;

constexpr int kFormat = 1;

/// The steady clock's times as those of the wall's clock, as that goes now: comparable between hosts whose clocks are.
class WallClock {
 public:
  nanoseconds now() const { return now_; }
  nanoseconds steady() const { return steady_; }
  nanoseconds of(std::int64_t steady) const { return now_ + (nanoseconds(steady) - steady_); }

 private:
  const nanoseconds now_ = std::chrono::system_clock::now().time_since_epoch();
  const nanoseconds steady_ = std::chrono::steady_clock::now().time_since_epoch();
};

void text_or_null(JsonWriter& json, std::string_view name, std::string_view text) {
  if (text.empty())
    json.null_field(name);
  else
    json.field(name, text);
}

void time_or_null(JsonWriter& json, std::string_view name, std::int64_t steady, const WallClock& clock) {
  if (steady == 0)
    json.null_field(name);
  else
    json.field(name, clock.of(steady));
}

void step_or_null(JsonWriter& json, std::int64_t step) {
  if (step < 0)
    json.null_field("step");
  else
    json.field("step", step);
}

const char* word_for(Meeting meeting) {
  switch (meeting) {
    case Meeting::signatures:
      return "signatures";
    case Meeting::plan:
      return "plan";
    case Meeting::roll_call:
      return "roll call";
    case Meeting::alone:
      return "alone";
  }
  return "unknown";
}

void write_shape(JsonWriter& json, const CallRecord& call) {
  json.key("shape");
  json.begin_array();
  for (std::size_t i = 0; i < static_cast<std::size_t>(std::max<int>(0, call.dimensions)); ++i)
    json.value(call.sizes[i]);
  json.end_array();
}

void write_message(JsonWriter& json, const CallRecord& call) {
  json.key("message");
  json.begin_object();
  json.field(call.sends ? "to" : "from", call.peer);
  json.field("number", call.message);
  json.end_object();
}

/// What the ranks have to agree on.
void write_signature(JsonWriter& json, const CallRecord& call, const std::vector<int>& ranks) {
  json.field("operation", name_of(static_cast<Operation>(call.operation)));
  if (call.dtype == Signature::kNone)
    json.null_field("dtype");
  else
    json.field("dtype", c10::toString(static_cast<at::ScalarType>(call.dtype)));
  write_shape(json, call);
  if (call.reduce_op == Signature::kNone)
    json.null_field("reduce_op");
  else
    json.field("reduce_op", name_of(static_cast<ReduceOp>(call.reduce_op)));
  const auto root = static_cast<std::size_t>(call.root);
  if (root < ranks.size())
    json.field("root", ranks[root]);
  else
    json.null_field("root");
}

void write_call(JsonWriter& json, const TimedRecord& record, const std::vector<int>& ranks, const WallClock& clock) {
  const auto& call = record.call;
  const auto meeting = static_cast<Meeting>(call.meeting);
  json.new_line();
  json.begin_object();
  if (call.number > 0)
    json.field("number", call.number);
  else
    write_message(json, call);
  write_signature(json, call, ranks);
  text_or_null(json, "label", call.label_text());
  step_or_null(json, call.step);
  text_or_null(json, "phase", call.phase);
  json.field("meeting", word_for(meeting));
  json.field("made_by", meeting == Meeting::plan ? "wrapped model" : "program");
  json.field("state", record.ended != 0 ? "completed" : record.started != 0 ? "started" : "queued");
  time_or_null(json, "queued", call.queued, clock);
  time_or_null(json, "started", record.started, clock);
  time_or_null(json, "ended", record.ended, clock);
  json.end_object();
}

void write_plan(JsonWriter& json, const NamedPlan& plan) {
  for (const auto& bucket : plan.buckets) {
    json.new_line();
    json.begin_object();
    json.field("label", std::string_view(bucket.label));
    json.field("from_call", plan.from_call);
    json.key("parameters");
    json.begin_array();
    for (const auto& parameter : bucket.parameters) json.value(std::string_view(parameter));
    json.end_array();
    json.end_object();
  }
}

void write_group(JsonWriter& json, const GroupRecord& group, const WallClock& clock) {
  const auto& ranks = group.ranks();
  const auto& recorder = group.recorder();
  json.new_line();
  json.begin_object();
  json.key("ranks");
  json.begin_array();
  for (const int rank : ranks) json.value(rank);
  json.end_array();
  json.field("rank_in_group", std::ranges::find(ranks, group.origin().rank) - ranks.begin());
  text_or_null(json, "backend", group.backend());
  step_or_null(json, recorder.step());
  json.field("entered", recorder.entered());
  json.field("last_completed", recorder.last_completed());
  json.key("calls");
  json.begin_array();
  recorder.for_each([&](const TimedRecord& record) { write_call(json, record, ranks, clock); });
  json.end_array();
  json.key("buckets");
  json.begin_array();
  group.legend().for_each([&](const NamedPlan& plan) { write_plan(json, plan); });
  json.end_array();
  json.end_object();
}

void write_thread(JsonWriter& json, const ThreadReport& thread, pid_t process) {
  json.new_line();
  json.begin_object();
  json.field("thread", thread.thread);
  json.field("name", std::string_view(thread.name));
  json.field("is_main", thread.thread == process);
  json.field("state", std::string_view(thread.state));
  json.key("stack");
  json.begin_array();
  for (const auto& frame : thread.stack.frames) {
    json.new_line();
    json.value(std::string_view(frame));
  }
  json.end_array();
  text_or_null(json, "stack_missing", thread.stack.missing);
  json.end_object();
}

void write_author(JsonWriter& json, const DumpAuthor& author, const WallClock& clock) {
  json.field("wall_time", clock.now());
  json.field("steady_time", clock.steady());
  json.field("host", std::string_view(author.host));
  json.field("pid", author.process);
  json.field("rank", author.origin.rank);
  json.field("world_size", author.origin.world_size);
  auto step = marked_step();
  GroupTable::of_process().for_each([&](const GroupRecord& group) { step = std::max(step, group.recorder().step()); });
  step_or_null(json, step);
  text_or_null(json, "phase", current_phase());
  time_or_null(json, "phase_since", phase_began().time_since_epoch().count(), clock);
}

}  // namespace

void write_dump(JsonWriter& json, const DumpAuthor& author, const DumpCause& cause,
                const std::vector<ThreadReport>* threads) noexcept {
  const WallClock clock;
  json.begin_object();
  json.field("format", kFormat);
  json.field("version", library_version());
  json.field("why", cause.why);
  text_or_null(json, "error", cause.error);
  write_author(json, author, clock);
  json.new_line();
  json.key("groups");
  json.begin_array();
  GroupTable::of_process().for_each([&](const GroupRecord& group) { write_group(json, group, clock); });
  json.end_array();
  json.field("groups_left_out", GroupTable::of_process().left_out());
  if (threads != nullptr) {
    json.key("threads");
    json.begin_array();
    for (const auto& thread : *threads) write_thread(json, thread, author.process);
    json.end_array();
  }
  json.end_object();
}

}  // namespace ddp::comm
