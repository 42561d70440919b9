#include "launch/node_words.hpp"

#include <array>
#include <charconv>
#include <csignal>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace ddp::launch {
namespace {

constexpr std::array kCommands{"start", "let end", "pass on", "kill", "leave"};  // in the order of Command::Kind

/// The fields of one message, read in order.
class Fields {
 public:
  Fields(const Message& message, std::string_view kind, std::size_t count) : message_(message) {
    if (message.kind != kind || message.fields.size() != count) {
      throw std::runtime_error("\"" + message.kind + "\" instead of \"" + std::string(kind) + "\"");
    }
  }
  std::string text() { return message_.fields[next_++]; }
  int number(int least, int most = std::numeric_limits<int>::max()) {
    return static_cast<int>(long_number(least, most));
  }
  std::int64_t long_number(std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    const auto& field = message_.fields[next_++];
    std::int64_t value = 0;
    const auto* const end = field.data() + field.size();
    const auto result = std::from_chars(field.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end || value < least || value > most) {
      throw std::runtime_error("\"" + field + "\" in \"" + message_.kind + "\"");
    }
    return value;
  }

 private:
  const Message& message_;
  std::size_t next_ = 0;
};

}  // namespace

std::string plain(std::string name) {
  for (auto& one : name) {
    if (one < ' ' || one == 0x7f) one = '?';
  }
  return name.substr(0, 255);
}

Message words_of(const Hello& hello) {
  return {kHello,
          {hello.language, hello.job_id, std::to_string(hello.nodes), std::to_string(hello.node_rank),
           std::to_string(hello.ranks), hello.host}};
}

Hello hello_of(const Message& message) {
  Fields fields(message, kHello, 6);
  Hello hello;
  hello.language = fields.text();
  hello.job_id = plain(fields.text());
  hello.nodes = fields.number(1);
  hello.node_rank = fields.number(0);
  hello.ranks = fields.number(1);
  hello.host = plain(fields.text());
  return hello;
}

Message words_of(const Terms& terms) {
  return {kWelcome,
          {terms.id, terms.log_name, std::to_string(terms.world_size), std::to_string(terms.nodes),
           std::to_string(terms.max_restarts), std::to_string(terms.store_port), std::to_string(terms.first_rank)}};
}

Terms terms_of(const Message& message) {
  Fields fields(message, kWelcome, 7);
  Terms terms;
  terms.id = fields.text();
  terms.log_name = fields.text();
  terms.world_size = fields.number(1);
  terms.nodes = fields.number(1);
  terms.max_restarts = fields.number(0);
  terms.store_port = static_cast<std::uint16_t>(fields.number(1, std::numeric_limits<std::uint16_t>::max()));
  terms.first_rank = fields.number(0, terms.world_size - 1);
  return terms;
}

Message words_of(const Command& command) {
  return {kCommands[static_cast<std::size_t>(command.kind)], {std::to_string(command.number), command.text}};
}

Command command_of(const Message& message) {
  for (std::size_t i = 0; i < kCommands.size(); ++i) {
    if (message.kind != kCommands[i]) continue;
    Fields fields(message, kCommands[i], 2);
    const int number = fields.number(0);
    return {static_cast<Command::Kind>(i), number, fields.text()};
  }
  throw std::runtime_error("\"" + message.kind + "\"");
}

Message words_of(const start::Outcome& outcome) {
  return {kRankEnded,
          {std::to_string(outcome.rank), std::to_string(outcome.status), std::to_string(outcome.sent),
           std::to_string(outcome.after.count()), outcome.host}};
}

start::Outcome outcome_of(const Message& message) {
  Fields fields(message, kRankEnded, 5);
  start::Outcome outcome;
  outcome.rank = fields.number(0);
  outcome.status = fields.number(0);
  outcome.sent = fields.number(0, NSIG);
  outcome.after = std::chrono::milliseconds(fields.long_number(0));
  outcome.host = fields.text();
  return outcome;
}

Message words_of_tail(int rank, const std::string& text) { return {kTail, {std::to_string(rank), text}}; }

std::pair<int, std::string> tail_of(const Message& message) {
  Fields fields(message, kTail, 2);
  const int rank = fields.number(0);
  return {rank, fields.text()};
}

Message words_of_signal(int signal) { return {kSignalled, {std::to_string(signal)}}; }

int signal_of(const Message& message) { return Fields(message, kSignalled, 1).number(1, NSIG); }

}  // namespace ddp::launch
