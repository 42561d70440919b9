#pragma once
/// node_words.hpp: the messages between launchers. Readers throw std::runtime_error for what makes no sense.

#include <string>
#include <utility>

#include "launch/message.hpp"
#include "launch/nodes.hpp"
#include "start/outcome.hpp"

namespace ddp::launch {

// To node 0. kHello is the first; kTail may stand before kRanksAreGone, which ends an attempt.
inline constexpr const char* kHello = "hello";
inline constexpr const char* kRankEnded = "rank ended";
inline constexpr const char* kTail = "tail";
inline constexpr const char* kRanksAreGone = "ranks are gone";
inline constexpr const char* kSignalled = "signalled";
// From node 0: kPatience at once, one of the two once all are there, then commands.
inline constexpr const char* kPatience = "patience";
inline constexpr const char* kWelcome = "welcome";
inline constexpr const char* kRefused = "refused";

/// Who comes.
struct Hello {
  std::string language;  ///< kLanguage; another one is refused
  std::string job_id;    ///< as the user gave it; empty: not at all
  int nodes = 1;
  int node_rank = 0;
  int ranks = 1;
  std::string host = {};
};
/// A name from another machine, without what steers a terminal.
std::string plain(std::string name);

/// Changes with the messages.
inline constexpr const char* kLanguage = "ddprun 1";

Message words_of(const Hello& hello);
Hello hello_of(const Message& message);

Message words_of(const Terms& terms);
Terms terms_of(const Message& message);

Message words_of(const Command& command);
Command command_of(const Message& message);

Message words_of(const start::Outcome& outcome);
start::Outcome outcome_of(const Message& message);

Message words_of_tail(int rank, const std::string& text);
std::pair<int, std::string> tail_of(const Message& message);

Message words_of_signal(int signal);
int signal_of(const Message& message);

}  // namespace ddp::launch
