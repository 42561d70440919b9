#include "launch/options.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <ostream>
#include <sstream>

#include "ddp/error.hpp"
#include "launch/flags.hpp"
#include "launch/rank_count.hpp"

namespace ddp::launch {
namespace {

using std::chrono::milliseconds;

constexpr long kHighestPid = 4 << 20;  // Linux has no higher one
constexpr int kMostRanks = 4096;       // beyond any machine, below the usual limits of processes
constexpr int kRanksOfACheck = 4;      // more than two, so that a wrong mean shows; few enough for a laptop
constexpr int kMostNodes = 65536;
constexpr int kMostRestarts = 1'000'000;
constexpr std::uint16_t kUsualPort = 29500;  // torchrun's

ConfigError wrong(std::string_view what, std::string_view remedy = "see ddprun --help") {
  return {Origin{}, "ddprun", what, remedy};
}

/// Index of the program: the first word that is neither a flag nor a flag's value.
int command_start(const CLI::App& app, int argc, const char* const* argv) {
  int i = 1;
  while (i < argc) {
    const std::string word = argv[i];
    if (word == "--") return i + 1;
    if (word.size() < 2 || word[0] != '-') return i;
    const auto* flag = app.get_option_no_throw(word);
    i += flag && flag->get_items_expected_max() > 0 ? 2 : 1;
  }
  return argc;
}

long whole_number(const std::string& text, const char* flag, long least, long most) {
  const bool digits = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
  const long value = digits ? std::stol(text) : least - 1;
  if (value < least || value > most) {
    throw wrong(std::string(flag) + " must be a whole number from " + std::to_string(least) + " to " +
                std::to_string(most) + ", not \"" + text + "\"");
  }
  return value;
}

milliseconds seconds_of(const std::string& text, const char* flag) {
  constexpr double kMostSeconds = 86400 * 365.0;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0 && value <= kMostSeconds)) {
    throw wrong(std::string(flag) + " must be a number of seconds, not \"" + text + "\"");
  }
  return milliseconds(static_cast<std::int64_t>(value * 1000));
}

std::uint16_t port_of(const std::string& text, const char* flag) {
  return static_cast<std::uint16_t>(whole_number(text, flag, 1, std::numeric_limits<std::uint16_t>::max()));
}

/// The job that is asked runs already: no other flag means anything to it, and no program.
void require_alone(const CLI::App& app, const std::vector<std::string>& words,
                   const std::vector<std::string>& command) {
  for (const auto* const option : app.get_options()) {
    const bool typed = std::ranges::any_of(
        words, [option](const std::string& word) { return option->check_name(word.substr(0, word.find('='))); });
    if (typed && option->get_name() != "--inspect") {
      throw wrong("--inspect starts nothing, so " + option->get_name() + " means nothing to it");
    }
  }
  if (!command.empty()) throw wrong("--inspect starts nothing, also not " + command.front());
}

void require_served(const std::vector<std::string>& words) {
  for (const auto& word : words) {
    if (const auto why = why_not_served(word); !why.empty()) throw wrong(why);
  }
}

/// "4", or torchrun's "4:4".
int node_count(const std::string& text) {
  const auto colon = text.find(':');
  const auto least = whole_number(text.substr(0, colon), "--nnodes", 1, kMostNodes);
  if (colon == std::string::npos) return static_cast<int>(least);
  const auto most = whole_number(text.substr(colon + 1), "--nnodes", 1, kMostNodes);
  if (least != most)
    throw wrong("--nnodes " + text + ": a number of nodes that changes is not served", "give one number");
  return static_cast<int>(least);
}

/// HOST, HOST:PORT, [ADDRESS]:PORT, or an IPv6 address alone.
void take_endpoint(const std::string& text, Options& options) {
  auto host = text;
  std::string port;
  const auto bracket = text.starts_with('[') ? text.find(']') : std::string::npos;
  const auto colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  if (bracket != std::string::npos) {
    host = text.substr(1, bracket - 1);
    port = colon == std::string::npos ? std::string() : text.substr(colon + 1);
    if (colon != bracket + 1 && bracket + 1 != text.size()) host.clear();
  } else if (colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) host.clear();
  }
  if (host.empty()) throw wrong("--rdzv-endpoint must be HOST or HOST:PORT, not \"" + text + "\"");
  options.master_address = host;
  if (!port.empty() && port != "0") options.master_port = port_of(port, "--rdzv-endpoint");
}

milliseconds join_timeout_of(const std::string& settings) {
  milliseconds timeout = Options().join_timeout;
  std::istringstream parts(settings);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    const auto key = part.substr(0, equals);
    if (equals == std::string::npos || (key != "join_timeout" && key != "timeout")) {
      throw wrong("--rdzv-conf takes join_timeout=SECONDS or timeout=SECONDS, not \"" + part + "\"");
    }
    timeout = seconds_of(part.substr(equals + 1), "--rdzv-conf");
  }
  return timeout;
}

void require_no_other_place(const Flags& flags) {
  const std::map<std::string, bool> others{{"--master-addr", !flags.master_address.empty()},
                                           {"--master-port", !flags.master_port.empty()},
                                           {"--rdzv-endpoint", !flags.endpoint.empty()},
                                           {"--node-rank", !flags.node_rank.empty() && flags.node_rank != "0"}};
  for (const auto& [flag, is_given] : others) {
    if (is_given)
      throw wrong("--standalone is one machine and any free port, " + flag + " says otherwise", "give one of them");
  }
  if (node_count(flags.nodes) > 1) {
    throw wrong("--standalone is one machine, --nnodes says otherwise", "give one of them");
  }
}

void take_place(const Flags& flags, Options& options) {
  if (flags.standalone) require_no_other_place(flags);
  options.nodes = node_count(flags.nodes);
  if (!flags.node_rank.empty()) {
    options.node_rank = static_cast<int>(whole_number(flags.node_rank, "--node-rank", 0, kMostNodes));
  }
  if (options.node_rank >= options.nodes) {
    throw wrong("--node-rank " + std::to_string(options.node_rank) + " is none of " + std::to_string(options.nodes) +
                " nodes, which count from 0");
  }
  const bool is_dynamic = flags.backend == "c10d";
  if (!flags.backend.empty() && flags.backend != "static" && !(is_dynamic && options.nodes == 1)) {
    throw wrong(
        "--rdzv-backend " + flags.backend + " is not served for " + std::to_string(options.nodes) + " nodes",
        "leave it out, and give each node its --node-rank; --rdzv-endpoint or --master-addr stays the same on all");
  }
  if (!flags.endpoint.empty() && !(flags.master_address.empty() && flags.master_port.empty())) {
    throw wrong("--rdzv-endpoint and --master-addr or --master-port name the same place", "give one of them");
  }
  if (!flags.endpoint.empty()) take_endpoint(flags.endpoint, options);
  if (!flags.master_address.empty()) options.master_address = flags.master_address;
  if (!flags.master_port.empty()) options.master_port = port_of(flags.master_port, "--master-port");
  if (options.nodes > 1 && options.master_address.empty()) {
    throw wrong("--nnodes " + std::to_string(options.nodes) + " needs --master-addr, the name or address of node 0");
  }
  if (options.nodes > 1 && options.master_port == 0) options.master_port = kUsualPort;
  options.local_address = flags.local_address;
  options.job_id = flags.job_id == "none" ? std::string() : flags.job_id;  // torchrun's word for it
  options.join_timeout = join_timeout_of(flags.rendezvous_settings);
}

void take_output(const Flags& flags, Options& options) {
  options.output = {.log_folder = flags.log_folder,
                    .redirects = flags.redirects,
                    .tee = flags.tee,
                    .shown_ranks = flags.shown_ranks,
                    .is_inherited = flags.inherits_output};
  parse_streams(flags.redirects, options.ranks, "--redirects");
  parse_streams(flags.tee, options.ranks, "--tee");
  parse_ranks(flags.shown_ranks, options.ranks, "--local-ranks-filter");
  if (flags.inherits_output && (wants_files(options.output) || !flags.shown_ranks.empty())) {
    throw wrong("--inherit-output leaves the ranks' output alone, so nothing of it can be filtered or go to files",
                "give one of them");
  }
}

Options checked(const Flags& flags) {
  Options options;
  if (flags.checks || flags.checks_long) options.check = flags.checks_long ? "long" : "1";
  if (flags.ranks.empty())
    options.ranks = options.check.empty() ? 1 : kRanksOfACheck;
  else
    options.ranks = local_ranks(flags.ranks);
  if (options.ranks < 1 || options.ranks > kMostRanks) {
    throw wrong("--nproc-per-node must be a whole number from 1 to " + std::to_string(kMostRanks) +
                ", cpu, gpu or auto, not \"" + flags.ranks + "\"");
  }
  take_place(flags, options);
  take_output(flags, options);
  if (!flags.max_restarts.empty()) {
    options.max_restarts = static_cast<int>(whole_number(flags.max_restarts, "--max-restarts", 0, kMostRestarts));
  }
  if (!flags.role.empty()) options.role = flags.role;
  if (!flags.monitor_interval.empty()) seconds_of(flags.monitor_interval, "--monitor-interval");
  if (!flags.shutdown_timeout.empty()) {
    options.shutdown_timeout = seconds_of(flags.shutdown_timeout, "--shutdown-timeout");
  }
  if (!flags.exit_grace.empty()) options.exit_grace = seconds_of(flags.exit_grace, "--exit-grace");
  options.binds_cores = flags.binds_cores;
  options.only_shows = flags.only_shows;
  return options;
}

void parse_words(CLI::App& app, std::vector<std::string> words) {
  std::ranges::reverse(words);  // CLI11 takes them last first
  app.parse(std::move(words));
}

/// For a flag that there is not.
std::string remedy_for(const std::vector<std::string>& words, const CLI::App& app) {
  for (const auto& word : words) {
    const auto flag = word.substr(0, word.find('='));
    if (!flag.starts_with('-') || app.get_option_no_throw(flag) != nullptr) continue;
    if (const auto meant = nearest_flag(flag, app); !meant.empty()) return "did you mean " + meant + "?";
  }
  return "see ddprun --help";
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, std::ostream& out) {
  CLI::App app("", "ddprun");
  Flags flags;
  declare(app, flags);
  const int first = std::min(command_start(app, argc, argv), argc);
  std::vector<std::string> words(argv + std::min(1, argc), argv + std::max(first, std::min(1, argc)));
  if (!words.empty() && words.back() == "--") words.pop_back();
  require_served(words);
  try {
    parse_words(app, words);
  } catch (const CLI::CallForHelp&) {
    out << app.help();
    return std::nullopt;
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << "\n";
    return std::nullopt;
  } catch (const CLI::ExtrasError& error) {
    throw wrong(error.what(), remedy_for(words, app));
  } catch (const CLI::ParseError& error) {
    throw wrong(error.what());
  }
  const std::vector<std::string> command(argv + std::max(first, std::min(1, argc)), argv + argc);
  if (!flags.inspected.empty() || app.count("--inspect") > 0) {
    require_alone(app, words, command);
    Options options;
    options.inspected = static_cast<pid_t>(whole_number(flags.inspected, "--inspect", 1, kHighestPid));
    return options;
  }
  auto options = checked(flags);
  options.command = command;
  if (options.command.empty()) throw wrong("no program to run", "ddprun --nproc-per-node 2 ./train; see ddprun --help");
  return options;
}

}  // namespace ddp::launch
