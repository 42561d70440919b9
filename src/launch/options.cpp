#include "launch/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "ddp/error.hpp"

namespace ddp::launch {
namespace {

constexpr const char* kDescription =
    "Runs a program as several ranks on this machine: the same program N times, each with\n"
    "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ... in its environment.\n";

constexpr const char* kFooter =
    "\n"
    "Examples:\n"
    "  ddprun --nproc-per-node 2 ./train --epochs 3\n"
    "  OMP_NUM_THREADS=4 ddprun --nproc-per-node 2 ./train     threads for each rank\n"
    "  ddprun --inspect 4711                                   what the ranks of a running job do\n"
    "\n"
    "Whatever follows the program is passed to it untouched. The flags are torchrun's, with\n"
    "dashes or underscores.\n"
    "\n"
    "When a rank fails, the others get a few seconds to end by themselves, then SIGTERM, then\n"
    "SIGKILL. The exit code is that of the rank that failed first, 128 + n for signal n, and 2 if\n"
    "nothing was started. Ctrl-C (and SIGTERM, SIGHUP, SIGQUIT) is passed on to the ranks, a second\n"
    "Ctrl-C kills them. What a rank leaves running in its process group ends with it.\n"
    "\n"
    "--inspect shows, for each rank of a running job, its step, what it did last, what it waits in\n"
    "and since when, also while the job is stuck. The exit code is 0 if somebody answered, else 1.\n";

constexpr long kHighestPid = 4 << 20;  // Linux has no higher one
constexpr int kMostRanks = 4096;       // beyond any machine, below the usual limits of processes

ConfigError wrong(std::string_view what, std::string_view remedy = "see ddprun --help") {
  return {Origin{}, "ddprun", what, remedy};
}

struct Raw {
  std::string ranks = "1";
  std::string master_port;
  std::string shutdown_timeout;
  std::string inspected;
  bool standalone = false;
  bool no_python = false;
  std::string program;            // named for the help alone:
  std::vector<std::string> args;  // the command is cut off before the flags are read
};

void declare(CLI::App& app, Raw& raw) {
  app.set_help_flag("-h,--help", "Print this and exit");
  app.set_version_flag("--version", "ddprun " DDP_VERSION);
  app.add_option("--nproc-per-node,--nproc_per_node", raw.ranks, "Number of ranks to start (1 if not given)")
      ->type_name("N");
  app.add_option("--master-port,--master_port", raw.master_port,
                 "Port where the ranks meet (any free one if not given, so that jobs never clash)")
      ->type_name("PORT");
  app.add_option("--shutdown-timeout,--shutdown_timeout", raw.shutdown_timeout,
                 "Seconds from SIGTERM to SIGKILL (30 after a signal from outside, 5 after a failed rank)")
      ->type_name("SECONDS");
  app.add_flag("--standalone", raw.standalone, "One machine and any free port, which is what ddprun does anyway");
  app.add_flag("--no-python,--no_python", raw.no_python,
               "Accepted as torchrun's; ddprun never starts Python by itself");
  app.add_option("--inspect", raw.inspected,
                 "Start nothing, but ask a running job what its ranks do. PID is one of its processes on this\n"
                 "machine, or what has started them (ddprun, torchrun, a shell)")
      ->type_name("PID");
  app.add_option("program", raw.program, "What to run: a path, or a name on the PATH")->type_name("");
  app.add_option("args", raw.args, "Its arguments")->type_name("");
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

long whole_number(const std::string& text, const char* flag, long most) {
  const bool digits = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
  const long value = digits ? std::stol(text) : 0;
  if (value < 1 || value > most) {
    throw wrong(std::string(flag) + " must be a whole number from 1 to " + std::to_string(most) + ", not \"" + text +
                "\"");
  }
  return value;
}

std::chrono::milliseconds seconds_of(const std::string& text, const char* flag) {
  constexpr double kMostSeconds = 86400 * 365.0;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0 && value <= kMostSeconds)) {
    throw wrong(std::string(flag) + " must be a number of seconds, not \"" + text + "\"");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(value * 1000));
}

/// The job that is asked runs already: no other flag means anything to it, and no program.
void require_alone(const CLI::App& app, const std::vector<std::string>& command) {
  for (const auto* const option : app.get_options()) {
    if (option->count() > 0 && option->get_name() != "--inspect") {
      throw wrong("--inspect starts nothing, so " + option->get_name() + " means nothing to it");
    }
  }
  if (!command.empty()) throw wrong("--inspect starts nothing, also not " + command.front());
}

void parse_flags(CLI::App& app, int first, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + first);
  if (!words.empty() && words.back() == "--") words.pop_back();
  std::reverse(words.begin(), words.end());  // CLI11 takes them last first
  app.parse(std::move(words));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, std::ostream& out) {
  CLI::App app(kDescription, "ddprun");
  app.footer(kFooter);
  Raw raw;
  declare(app, raw);
  const int first = command_start(app, argc, argv);
  try {
    parse_flags(app, first, argv);
  } catch (const CLI::CallForHelp&) {
    out << app.help();
    return std::nullopt;
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << "\n";
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw wrong(error.what());
  }
  Options options;
  options.command.assign(argv + std::min(first, argc), argv + argc);
  if (app.count("--inspect") > 0) {
    options.inspected = static_cast<pid_t>(whole_number(raw.inspected, "--inspect", kHighestPid));
    require_alone(app, options.command);
    return options;
  }
  if (raw.standalone && !raw.master_port.empty()) {
    throw wrong("--standalone picks a free port by itself, --master-port names one", "give one of them");
  }
  options.ranks = static_cast<int>(whole_number(raw.ranks, "--nproc-per-node", kMostRanks));
  if (!raw.master_port.empty()) {
    options.master_port = static_cast<std::uint16_t>(whole_number(raw.master_port, "--master-port", 65535));
  }
  if (!raw.shutdown_timeout.empty()) options.shutdown_timeout = seconds_of(raw.shutdown_timeout, "--shutdown-timeout");
  if (options.command.empty()) throw wrong("no program to run", "ddprun --nproc-per-node 2 ./train; see ddprun --help");
  return options;
}

}  // namespace ddp::launch
