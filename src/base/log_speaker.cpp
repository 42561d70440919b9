#include "base/log_speaker.hpp"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "ddp/error.hpp"
#include "ddp/log.hpp"

namespace ddp::log {
namespace {

constexpr std::string_view kRankField = "{rank}";

bool names_each_rank(std::string_view path) { return path.find(kRankField) != std::string_view::npos; }

/// Errors: std::runtime_error for another word in braces than the one that means something.
void require_known_fields(std::string_view path) {
  for (auto at = path.find('{'); at != std::string_view::npos; at = path.find('{', at + 1)) {
    const auto field = path.substr(at, path.find('}', at) - at + 1);
    if (field != kRankField)
      throw std::runtime_error("\"" + std::string(path) + "\" has " + std::string(field) +
                               ", but only {rank} is known");
  }
}

/// `path` as this rank's own, or nothing where it is rank 0's.
std::string path_of(int rank, std::string path) {
  if (!names_each_rank(path)) return rank == 0 ? path : std::string();
  for (auto at = path.find(kRankField); at != std::string::npos; at = path.find(kRankField, at))
    path.replace(at, kRankField.size(), std::to_string(rank));
  return path;
}

class Speaker {
 public:
  /// `variable` is a path, or null, for a program that has not asked for one. Returns a sentence where the file cannot
  /// be opened.
  std::string introduce(const Identity& identity, const char* variable);
  void to_file(const std::string& path);
  Places places_for(int speaking_rank) const;

 private:
  enum class File { none, shown_lines, own_lines };

  void use(const std::string& path);

  std::atomic<int> rank_ = 0;
  std::atomic<File> file_ = File::none;

  std::mutex mutex_;  // of what follows
  Identity identity_;
  bool is_introduced_ = false;
  std::string asked_for_;  // by the program
  std::string complaint_;  // the last one
};

void Speaker::use(const std::string& path) {
  require_known_fields(path);
  const auto own = path_of(identity_.rank, path);
  use_file(own.empty() ? nullptr : std::make_unique<LogFile>(own));
  file_ = own.empty() ? File::none : names_each_rank(path) ? File::own_lines : File::shown_lines;
}

std::string Speaker::introduce(const Identity& identity, const char* variable) {
  const std::scoped_lock lock(mutex_);
  name_speaker(identity);
  rank_ = identity.rank;
  identity_ = identity;
  is_introduced_ = true;
  const bool asked = !asked_for_.empty();
  const std::string path = asked || !variable ? asked_for_ : variable;
  try {
    use(path);
  } catch (const std::runtime_error& error) {
    use("");  // the former one may be that of another rank
    const auto complaint =
        (asked ? "log::to_file(\"" + path + "\")" : "DDP_LOG_FILE=" + path) + " is ignored: " + error.what();
    return complaint == std::exchange(complaint_, complaint) ? std::string() : complaint;
  }
  return {};
}

void Speaker::to_file(const std::string& path) {
  if (path.empty()) throw std::invalid_argument("log::to_file: the path is empty");
  const std::scoped_lock lock(mutex_);
  if (!is_introduced_)
    throw std::logic_error("log::to_file(\"" + path +
                           "\") before init_process_group(): this process does not know its rank yet, and all ranks "
                           "would write; call it after that");
  try {
    use(path);
  } catch (const std::runtime_error& error) {
    throw ConfigError({identity_.rank, identity_.world_size}, "log::to_file", error.what(),
                      "give a path where this process may write");
  }
  asked_for_ = path;
}

Places Speaker::places_for(int speaking_rank) const {
  const bool shown = speaking_rank == Audience::every_rank || speaking_rank == rank_;
  const File file = file_;
  return {.console = shown, .file = file != File::none && (shown || (file == File::own_lines && speaking_rank == 0))};
}

/// Never destroyed: threads that outlive main() may still speak.
Speaker& speaker() {
  static auto* const instance = new Speaker;
  return *instance;
}

}  // namespace

const Settings& settings() {
  // Never destroyed, as above.
  static const auto* const instance = [] {
    auto* read = new Settings(parse_settings(std::getenv("DDP_LOG_LEVEL"), std::getenv("DDP_LOG_SUBSYS")));
    if (read->shows(Level::warn)) {
      for (const auto& complaint : read->complaints) put(Level::warn, complaint, places_for(0));
    }
    return read;
  }();
  return *instance;
}

Places places_for(int speaking_rank) { return speaker().places_for(speaking_rank); }

void set_identity(const Identity& identity) {
  const auto complaint = speaker().introduce(identity, std::getenv("DDP_LOG_FILE"));
  if (settings().shows(Level::warn) && !complaint.empty()) put(Level::warn, complaint, {.console = true});
}

void to_file(const std::string& path) { speaker().to_file(path); }

bool enabled(Level level, int speaking_rank) { return settings().shows(level) && places_for(speaking_rank).any(); }

bool enabled(Subsystem subsystem) { return settings().shows(subsystem); }

}  // namespace ddp::log
