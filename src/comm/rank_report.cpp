#include "comm/rank_report.hpp"

#include <algorithm>

#include "comm/watch_frame.hpp"

namespace ddp::comm {

using namespace watch;

namespace {

constexpr std::size_t kMaxLine = 1024;  // of a status, as of the other texts: whole reports fit into kMaxReport
constexpr std::size_t kMaxFrame = 200;  // a function's name and its file's
constexpr std::size_t kMaxFrames = 40;

void put(BodyWriter& body, std::string_view text, std::size_t limit) {
  const auto bounded = bounded_text(text, limit);
  body.u16(static_cast<std::uint16_t>(bounded.size())).text(bounded);
}

void put(BodyWriter& body, std::chrono::milliseconds time) { body.u64(static_cast<std::uint64_t>(time.count())); }

std::string take_text(BodyReader& body) { return body.text(body.u16()); }

std::chrono::milliseconds take_time(BodyReader& body) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(body.u64()));
}

bool take_flag(BodyReader& body) { return body.u8() != 0; }

}  // namespace

std::string encode_report(const RankReport& report) {
  BodyWriter body;
  put(body, report.status, kMaxLine);
  body.u64(report.entered).u64(static_cast<std::uint64_t>(report.step));
  put(body, report.phase, kMaxLine);
  put(body, report.in_phase);
  body.u8(report.data_used_up).u8(report.call.has_value());
  if (report.call) {
    body.u64(report.call->number);
    put(body, report.call->kind, kMaxLine);
    put(body, report.call->text, kMaxLine);
  }
  put(body, report.in_call);
  body.u8(report.works_for_all);
  put(body, report.elsewhere, kMaxLine);
  body.u8(static_cast<std::uint8_t>(report.hindrance));
  put(body, report.thread, kMaxLine);
  const auto frames = std::min(report.stack.size(), kMaxFrames);
  body.u8(static_cast<std::uint8_t>(frames));
  for (std::size_t i = 0; i < frames; ++i) put(body, report.stack[i], kMaxFrame);
  return body.bytes();
}

std::optional<RankReport> decode_report(std::string_view text) {
  BodyReader body(text);
  RankReport report;
  report.status = take_text(body);
  report.entered = body.u64();
  report.step = static_cast<std::int64_t>(body.u64());
  report.phase = take_text(body);
  report.in_phase = take_time(body);
  report.data_used_up = take_flag(body);
  if (take_flag(body)) {
    report.call.emplace();
    report.call->number = body.u64();
    report.call->kind = take_text(body);
    report.call->text = take_text(body);
  }
  report.in_call = take_time(body);
  report.works_for_all = take_flag(body);
  report.elsewhere = take_text(body);
  const auto hindrance = body.u8();
  report.hindrance = static_cast<Hindrance>(hindrance);
  report.thread = take_text(body);
  for (int frames = body.u8(); frames > 0; --frames) report.stack.push_back(take_text(body));
  const bool is_whole = body.ok() && body.at_end() && hindrance <= static_cast<std::uint8_t>(Hindrance::ended);
  return is_whole ? std::optional(std::move(report)) : std::nullopt;
}

}  // namespace ddp::comm
