#include "comm/watch_mismatch.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "comm/watch_frame.hpp"

namespace ddp::comm::watch {
namespace {

const MadeCall* find(const std::vector<MadeCall>& calls, std::uint64_t number) {
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const auto& call) { return call.number == number; });
  return found == calls.end() ? nullptr : &*found;
}

using Camps = std::vector<std::pair<std::string, std::string>>;  // text of a call, and " 0, 2"

std::string named(const std::string& ranks) {
  return (ranks.find(',') == std::string::npos ? "rank" : "ranks") + ranks;
}

/// Where some ranks are in the wrapped model and others are not, these have had fewer batches, or only rank 0 does
/// something.
std::string likely_reason(const Camps& camps) {
  std::string outside;
  bool in_model = false;
  for (const auto& [call, ranks] : camps) {
    const bool is_planned = call.find(kByModel) != std::string::npos;
    in_model = in_model || is_planned;
    if (!is_planned) outside += (outside.empty() ? "" : ",") + ranks;
  }
  if (!in_model || outside.empty()) return {};
  const auto* const reason = outside == " 0" ? " has made a call under an `if (rank == 0)`, or has had fewer batches"
                                             : " had fewer batches and left the loop earlier, or skipped a backward()";
  return ": probably " + named(outside) + reason;
}

}  // namespace

std::string encode_calls(const std::vector<MadeCall>& calls) {
  BodyWriter body;
  for (std::size_t i = 0; i < std::min(calls.size(), kMaxCalls); ++i) {
    const auto kind = bounded_text(calls[i].kind, kMaxCallText), text = bounded_text(calls[i].text, kMaxCallText);
    body.u64(calls[i].number).u16(static_cast<std::uint16_t>(kind.size())).u16(static_cast<std::uint16_t>(text.size()));
    body.text(kind).text(text);
  }
  return body.bytes();
}

std::optional<std::vector<MadeCall>> decode_calls(std::string_view bytes) {
  std::vector<MadeCall> calls;
  BodyReader body(bytes);
  while (!body.at_end()) {
    MadeCall call{.number = body.u64()};
    const std::size_t kind = body.u16(), text = body.u16();
    if (kind > kMaxCallText || text > kMaxCallText || calls.size() == kMaxCalls) return std::nullopt;
    call.kind = body.text(kind);
    call.text = body.text(text);
    if (!body.ok()) return std::nullopt;
    calls.push_back(std::move(call));
  }
  return calls;
}

std::optional<std::string> Waits::mismatch() const {
  auto first = UINT64_MAX;  // no rank is beyond it for good
  for (const auto& calls : calls_) {
    if (calls.empty()) return std::nullopt;
    first = std::min(first, calls[0].number);
  }
  Camps camps;
  bool differ = false;
  for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
    const auto* const call = find(calls_[rank], first);
    if (call == nullptr) return std::nullopt;
    differ = differ || call->kind != find(calls_[0], first)->kind;
    const auto& now = calls_[rank][0];
    const auto text = call->text + (now.number == first ? "" : "; now in " + now.text);
    const auto name = std::to_string(names_[rank]);
    const auto camp = std::find_if(camps.begin(), camps.end(), [&](const auto& one) { return one.first == text; });
    if (camp == camps.end())
      camps.emplace_back(text, " " + name);
    else
      camp->second += ", " + name;
  }
  if (!differ) return std::nullopt;
  auto text = "the ranks wait in different calls, which never meet" + likely_reason(camps);
  for (const auto& [call, ranks] : camps) text += "\n  " + named(ranks) + ": " + call;
  return text;
}

}  // namespace ddp::comm::watch
