#include "launch/output_plan.hpp"

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "ddp/error.hpp"

namespace ddp::launch {
namespace {

ConfigError wrong(const std::string& what, const std::string& remedy) { return {Origin{}, "ddprun", what, remedy}; }

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
  if (!text.empty() && text.back() == by) parts.emplace_back();
  return parts;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 8 && text.find_first_not_of("0123456789") == std::string::npos;
}

/// -1 where the text is no local rank.
int local_rank_of(const std::string& text, int local_ranks) {
  const int rank = is_number(text) ? std::stoi(text) : -1;
  return rank < local_ranks ? rank : -1;
}

bool is_streams(const std::string& text) { return text.size() == 1 && text[0] >= '0' && text[0] <= '3'; }

Streams streams_of(char value) { return {value == '1' || value == '3', value == '2' || value == '3'}; }

bool any(const std::vector<Streams>& all) {
  for (const auto& one : all) {
    if (one.output || one.error) return true;
  }
  return false;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw wrong("cannot make the folder " + folder.string() + ": " + error.message(), "choose another --log-dir");
}

/// A job's id may come from the user: nothing in it leads out of the folder.
std::string as_name(std::string id) {
  for (auto& one : id) {
    if (one == '/' || one == '\0') one = '_';
  }
  return id.empty() || id == "." || id == ".." ? "job" : id;
}

std::filesystem::path log_base(const OutputOptions& options) {
  if (!options.log_folder.empty()) return options.log_folder;
  std::error_code none;
  return std::filesystem::temp_directory_path(none) / "ddprun";
}

}  // namespace

std::vector<Streams> parse_streams(const std::string& text, int local_ranks, const char* flag) {
  const auto rank_count = static_cast<std::size_t>(local_ranks);
  if (text.empty()) return std::vector<Streams>(rank_count);
  if (is_streams(text)) return std::vector<Streams>(rank_count, streams_of(text[0]));
  std::vector<Streams> all(rank_count);
  for (const auto& part : split(text, ',')) {
    const auto colon = part.find(':');
    const int rank = colon == std::string::npos ? -1 : local_rank_of(part.substr(0, colon), local_ranks);
    const auto value = colon == std::string::npos ? std::string() : part.substr(colon + 1);
    if (rank < 0 || !is_streams(value)) {
      throw wrong(std::string(flag) +
                      " must be 0, 1 (output), 2 (error) or 3 (both), or such a number for local ranks, " +
                      "as in 0:3,1:1, not \"" + text + "\"",
                  "see ddprun --help");
    }
    all[static_cast<std::size_t>(rank)] = streams_of(value[0]);
  }
  return all;
}

std::set<int> parse_ranks(const std::string& text, int local_ranks, const char* flag) {
  std::set<int> ranks;
  for (const auto& part : split(text, ',')) {
    const int rank = local_rank_of(part, local_ranks);
    if (rank < 0) {
      throw wrong(std::string(flag) + " must be local ranks below " + std::to_string(local_ranks) +
                      ", as in 0,1, not \"" + text + "\"",
                  "see ddprun --help");
    }
    ranks.insert(rank);
  }
  return ranks;
}

bool wants_files(const OutputOptions& options) {
  return !options.log_folder.empty() || options.redirects.find_first_of("123") != std::string::npos ||
         options.tee.find_first_of("123") != std::string::npos;
}

std::vector<RankTargets> plan_output(const OutputOptions& options, const std::string& folder, int first_rank,
                                     int local_ranks, int attempt) {
  const auto redirected = parse_streams(options.redirects, local_ranks, "--redirects");
  auto teed = parse_streams(options.tee, local_ranks, "--tee");
  if (!options.log_folder.empty() && !any(redirected) && !any(teed)) teed.assign(teed.size(), {true, true});
  const auto shown = parse_ranks(options.shown_ranks, local_ranks, "--local-ranks-filter");
  std::vector<RankTargets> plan;
  for (int local = 0; local < local_ranks; ++local) {
    const auto& to_file = redirected[static_cast<std::size_t>(local)];
    const auto& to_both = teed[static_cast<std::size_t>(local)];
    const auto own =
        std::filesystem::path(folder) / ("attempt_" + std::to_string(attempt)) / std::to_string(first_rank + local);
    const bool is_shown = shown.empty() || shown.contains(local);
    const auto target = [&](bool file, bool both, const char* name) {
      return Targets{is_shown && (!file || both), file || both ? (own / name).string() : std::string()};
    };
    plan.push_back(
        {target(to_file.output, to_both.output, "stdout.log"), target(to_file.error, to_both.error, "stderr.log")});
    if (!plan.back().output.file.empty() || !plan.back().error.file.empty()) make_folder(own);
  }
  return plan;
}

std::string choose_log_name(const OutputOptions& options, const std::string& job_id) {
  std::error_code none;
  const auto id = as_name(job_id);
  auto name = id;
  for (int i = 2; std::filesystem::exists(log_base(options) / name, none); ++i) name = id + "-" + std::to_string(i);
  return name;
}

std::string make_log_folder(const OutputOptions& options, const std::string& name) {
  const auto folder = log_base(options) / as_name(name);
  make_folder(folder);
  return folder.string();
}

}  // namespace ddp::launch
