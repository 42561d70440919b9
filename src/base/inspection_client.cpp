#include "base/inspection_client.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>

#include "base/inspection_wire.hpp"

namespace ddp {
namespace {

using namespace inspection;
using Kind = InspectionReply::Kind;

constexpr std::size_t kLargestAnswer = std::size_t{64} << 20;  // thousands of ranks in many groups; not all memory
constexpr std::chrono::milliseconds kPause{5};

/// Kind::answer once connected.
Kind connect_to(int socket, const ProcessKey& whom, Clock::time_point deadline) {
  const auto address = address_of(whom);
  while (::connect(socket, address.get(), address.length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Kind::nobody;
    if (Clock::now() >= deadline) return Kind::silent;  // so many wait there that the kernel takes no more
    wait_for(-1, 0, std::min(deadline, Clock::now() + kPause));
  }
  return Kind::answer;
}

InspectionReply failed(Transfer transfer) { return {transfer == Transfer::late ? Kind::silent : Kind::refused}; }

InspectionReply reply_in(Conversation& conversation, Clock::time_point deadline) {
  std::string line;
  const auto transfer = conversation.receive_line(line, deadline);
  if (transfer != Transfer::done) return failed(transfer);
  if (line == kOtherJob) return {Kind::other_job};
  if (line.starts_with(kError)) return {Kind::refused, line.substr(kError.size())};
  std::size_t size = 0;
  const auto* const end = line.data() + line.size();
  const bool is_answer = line.starts_with(kAnswer);
  const auto number = std::from_chars(line.data() + (is_answer ? kAnswer.size() : 0), end, size);
  if (!is_answer || number.ec != std::errc() || number.ptr != end || size > kLargestAnswer) {
    return {Kind::refused, "its answer cannot be read; is it of another version?"};
  }
  InspectionReply reply{Kind::answer};
  const auto rest = conversation.receive(reply.text, size, deadline);
  return rest == Transfer::done ? reply : failed(rest);
}

}  // namespace

InspectionReply ask_process(const InspectionQuestion& question) {
  const auto deadline = Clock::now() + question.limit;
  const Descriptor socket = stream_socket();
  if (const auto kind = connect_to(socket.get(), question.whom, deadline); kind != Kind::answer) return {kind};
  if (user_of(socket.get()) != question.owner) return {Kind::nobody};
  Conversation conversation(socket.get());
  const auto whom = question.about ? question.about->text() : std::string(kAnyJob);
  conversation.send(std::string(kQuestion) + whom + "\n", deadline);
  return reply_in(conversation, deadline);  // also of one that closes before it has heard the question
}

std::vector<ProcessKey> inspected_processes() {
  std::vector<ProcessKey> keys;
  std::ifstream sockets("/proc/self/net/unix");
  const auto prefix = " @" + std::string(kSocketPrefix);
  for (std::string line; std::getline(sockets, line);) {
    const auto at = line.rfind(prefix);
    if (at == std::string::npos) continue;
    const auto key = ProcessKey::parsed(std::string_view(line).substr(at + prefix.size()));
    if (key && std::find(keys.begin(), keys.end(), *key) == keys.end()) keys.push_back(*key);
  }
  return keys;
}

}  // namespace ddp
