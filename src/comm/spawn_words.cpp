#include "comm/spawn_words.hpp"

#include <sys/wait.h>

#include <csignal>

#include "start/signal_name.hpp"

namespace ddp {
namespace comm {
namespace {

using Rank = start::SpawnedRanks::Rank;
using Stage = start::SpawnHeard::Stage;

constexpr const char* kUnknown =
    "ended in a way that nobody knows, since this program waits for all of its children or ignores SIGCHLD";

// An Error's text begins with its rank, which stands before this one, too.
std::string without_rank(std::string text, int rank, int world_size) {
  const auto origin = "rank " + std::to_string(rank) + " of " + std::to_string(world_size) + ": ";
  return text.starts_with(origin) ? text.substr(origin.size()) : text;
}

std::string end_of(std::optional<int> status) {
  if (!status) return kUnknown;
  if (WIFEXITED(*status)) return "left with exit code " + std::to_string(WEXITSTATUS(*status));
  const int signal = WTERMSIG(*status);
  auto text = "was killed by " + start::signal_name(signal) + " (signal " + std::to_string(signal) + ")";
  return WCOREDUMP(*status) ? text + ", core dumped" : text;
}

std::string when(Stage stage, std::optional<int> status, const std::string& place) {
  if (stage == Stage::started) return " before it came to spawn() at " + place;
  if (stage == Stage::done) return " after its function had returned";
  return status && WIFEXITED(*status) ? " before its function had returned" : "";
}

std::string remedy_for(Stage stage, std::optional<int> status) {
  if (status && WIFSIGNALED(*status)) {
    if (WTERMSIG(*status) == SIGKILL) return "perhaps the machine was out of memory (see dmesg)";
    return WTERMSIG(*status) == SIGABRT ? "its output says why" : "";
  }
  if (stage == Stage::started)
    return "a rank runs main() anew, with an empty standard input, and must come to the same call";
  return stage == Stage::begun ? "a function that spawn() runs returns or throws, and does not call exit()" : "";
}

}  // namespace

SpawnError spawn_error(const Rank& failed, int world_size, const std::string& place) {
  const auto stage = failed.heard.stage();
  SpawnError::Ending ending{.rank = failed.rank};
  if (stage == Stage::threw) {
    ending.exit_code = failed.heard.exit_code();
    ending.thrown = failed.heard.type();
    const auto text = without_rank(failed.heard.text(), failed.rank, world_size);
    return {world_size, "its function threw " + ending.thrown + ": " + text, {}, ending};
  }
  const auto status = failed.process.status();
  if (status && WIFSIGNALED(*status)) ending.signal = WTERMSIG(*status);
  if (status && WIFEXITED(*status)) ending.exit_code = WEXITSTATUS(*status);
  return {world_size, "it " + end_of(status) + when(stage, status, place), remedy_for(stage, status), ending};
}

}  // namespace comm

SpawnError::SpawnError(int world_size, std::string_view what, std::string_view remedy, Ending ending)
    : Error({ending.rank, world_size}, "spawn", what, remedy), ending_(std::move(ending)) {}

}  // namespace ddp
