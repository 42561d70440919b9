#include "launch/flags.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <utility>

namespace ddp::launch {
namespace {

constexpr const char* kDescription =
    "Runs a program as several ranks: the same program N times on this machine, or on each of several, each with\n"
    "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ... in its environment.\n";

constexpr const char* kFooter =
    "\n"
    "Examples:\n"
    "  ddprun --nproc-per-node 2 ./train --epochs 3\n"
    "  OMP_NUM_THREADS=4 ddprun --nproc-per-node 2 ./train     threads for each rank\n"
    "  ddprun --nproc-per-node 4 --max-restarts 3 ./train      again after a failure, from its checkpoint\n"
    "  ddprun --nnodes 2 --node-rank 0 --master-addr node-a --nproc-per-node 4 ./train     on node-a, and\n"
    "  ddprun --nnodes 2 --node-rank 1 --master-addr node-a --nproc-per-node 4 ./train     on the other\n"
    "  ddprun --check ./train                                  does it train on 4 ranks as in one process?\n"
    "  ddprun --dry-run --nproc-per-node 2 ./train             what would be started, and with what\n"
    "  ddprun --inspect 4711                                   what the ranks of a running job do\n"
    "\n"
    "Whatever follows the program is passed to it untouched. The flags are torchrun's, with dashes or underscores, "
    "and\n"
    "each may be given by torchrun's variable instead (PET_NNODES=2).\n"
    "\n"
    "Each line of a rank's output is shown whole, after \"[rank 1] \".\n"
    "\n"
    "When a rank fails, the others get a few seconds to end by themselves, then SIGTERM, then SIGKILL. The exit code "
    "is\n"
    "that of the rank that failed first, 128 + n for signal n, and 2 if nothing was started. Ctrl-C (and SIGTERM,\n"
    "SIGHUP, SIGQUIT) is passed on to all ranks, a second Ctrl-C kills them; SIGUSR1 and SIGUSR2 go to ranks that "
    "handle\n"
    "them. What a rank leaves running in its process group ends with it.\n"
    "\n"
    "--inspect shows, for each rank of a running job, its step, what it did last, what it waits in and since when, "
    "also\n"
    "while the job is stuck. The exit code is 0 if somebody answered, else 1.\n";

/// "--nproc-per-node,--nproc_per_node"
std::string with_underscores(const std::string& names) {
  const auto last = names.substr(names.rfind(',') + 1);
  auto other = last;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == last ? names : names + "," + other;
}

/// PET_NPROC_PER_NODE
std::string variable_of(const std::string& names) {
  auto name = "PET_" + names.substr(names.rfind(',') + 3);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char one) { return static_cast<char>(one == '-' ? '_' : std::toupper(one)); });
  return name;
}

class Declared {
 public:
  explicit Declared(CLI::App& app) : app_(app) {}

  void group(const std::string& name) { group_ = name; }
  void value(const std::string& names, std::string& into, const char* type, const std::string& help) {
    own_value(names, into, type, help)->envname(variable_of(names));
  }
  /// Of ddprun alone: it has no variable of torchrun's.
  CLI::Option* own_value(const std::string& names, std::string& into, const char* type, const std::string& help) {
    auto* const option = app_.add_option(with_underscores(names), into, help);
    option->check([](const std::string& text) { return std::string(text.empty() ? "its value is empty" : ""); });
    option->multi_option_policy(
        CLI::MultiOptionPolicy::TakeLast);  // as torchrun's: scripts put theirs behind common ones
    return option->type_name(type)->group(group_);
  }
  void own_flag(const std::string& names, bool& into, const std::string& help) {
    app_.add_flag(with_underscores(names), into, help)->group(group_);
  }

 private:
  CLI::App& app_;
  std::string group_;
};

void declare_job(Declared& add, Flags& flags) {
  add.group("Ranks");
  add.value("--nproc-per-node", flags.ranks, "N",
            "Ranks to start on this machine: a number (1 if not given), cpu (one for each core that may be used), gpu\n"
            "(one for each GPU) or auto (gpu where there is one, else cpu)");
  add.value("--max-restarts", flags.max_restarts, "N",
            "How often all ranks are started again after a failure (0; node 0's number counts).\n"
            "TORCHELASTIC_RESTART_COUNT tells them; a program goes on from its checkpoint");
  add.value("--shutdown-timeout", flags.shutdown_timeout, "SECONDS",
            "From SIGTERM to SIGKILL (30 after a signal from outside, 5 after a failed rank)");
  add.own_value("--exit-grace", flags.exit_grace, "SECONDS",
                "What the other ranks may take to end once one has ended well (300); after that the job has failed");
  add.own_flag("--bind-cores", flags.binds_cores, "Give each rank cores of its own, of one NUMA node where it can be");
  add.value("--role", flags.role, "NAME", "ROLE_NAME for the ranks (default)");
  add.own_flag(
      "--check", flags.checks,
      "Check instead of training, on 4 ranks if not said otherwise: sets DDP_CHECK=1, with which a program that\n"
      "calls ddp::smoke_test_on_request() compares some steps with those of one process and ends");
  add.own_flag("--check-long", flags.checks_long, "The same with 50 steps instead of 20: DDP_CHECK=long");
  add.own_flag("--dry-run", flags.only_shows, "Start nothing, but print what would be started");
}

void declare_nodes(Declared& add, Flags& flags) {
  add.group("Nodes");
  add.own_flag("--standalone", flags.standalone, "One machine and any free port, which is what ddprun does anyway");
  add.value("--nnodes", flags.nodes, "N", "Machines that take part (1)");
  add.value("--node-rank", flags.node_rank, "N", "Number of this one, from 0");
  add.value("--master-addr", flags.master_address, "HOST", "Name or address of node 0");
  add.value(
      "--master-port", flags.master_port, "PORT",
      "Port of node 0 where the launchers meet (29500); of one machine: the port of the ranks' store (any free one\n"
      "if not given, so that jobs never clash)");
  add.value("--rdzv-endpoint", flags.endpoint, "HOST[:PORT]", "The same as --master-addr and --master-port");
  add.value("--rdzv-id", flags.job_id, "ID", "The job's name, the same on all nodes; another job is refused");
  add.value("--rdzv-backend", flags.backend, "NAME", "static; of one machine also c10d, which then means the same");
  add.value("--rdzv-conf", flags.rendezvous_settings, "KEY=VALUE,...",
            "join_timeout or timeout: seconds to wait for all nodes (600)");
  add.value("--local-addr", flags.local_address, "ADDRESS",
            "Address of this machine to be used; the system's choice if not given");
  add.value("--monitor-interval", flags.monitor_interval, "SECONDS",
            "Accepted as torchrun's; ddprun looks at nothing at intervals, it is told at once");
}

void declare_output(Declared& add, Flags& flags) {
  add.group("Output");
  add.value("--log-dir", flags.log_folder, "FOLDER",
            "Also write each rank's output to FOLDER/JOB/attempt_0/RANK/stdout.log and stderr.log, a folder for each\n"
            "restart");
  add.value("-r,--redirects", flags.redirects, "STREAMS",
            "Write to those files alone: 1 output, 2 error, 3 both, 0:3,1:1 by local rank");
  add.value("-t,--tee", flags.tee, "STREAMS", "Write to files and show, in the same words");
  add.value("--local-ranks-filter", flags.shown_ranks, "RANKS", "Show the output of these local ranks alone: 0,1");
  add.own_flag("--inherit-output", flags.inherits_output,
               "Ranks write to ddprun's own output as they are, without prefixes: as torchrun's do");
}

void declare_others(Declared& add, CLI::App& app, Flags& flags) {
  add.group("Others");
  add.own_value("--inspect", flags.inspected, "PID",
                "Start nothing, but ask a running job what its ranks do. PID is one of its processes on this machine,\n"
                "or what has started them (ddprun, torchrun, a shell)");
  add.own_flag("--no-python", flags.no_python, "Accepted as torchrun's; ddprun never starts Python by itself");
  app.add_option("program", flags.program, "What to run: a path, or a name on the PATH")->type_name("");
  app.add_option("args", flags.args, "Its arguments")->type_name("");
}

/// How many letters must be put in, left out or changed. Levenshtein, "Binary codes capable of correcting deletions,
/// insertions, and reversals" (1966).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row[b.size()];
}

}  // namespace

void declare(CLI::App& app, Flags& flags) {
  app.description(kDescription);
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "Print this and exit");
  app.set_version_flag("--version", "ddprun " DDP_VERSION);
  Declared add(app);
  declare_job(add, flags);
  declare_nodes(add, flags);
  declare_output(add, flags);
  declare_others(add, app, flags);
}

std::string nearest_flag(const std::string& word, const CLI::App& app) {
  if (word == "-n" || word == "-np" || word == "--np") return "--nproc-per-node";  // mpirun's
  constexpr std::size_t kMostSlips = 3;
  std::string nearest;
  auto least = std::min(kMostSlips + 1, word.size() / 2);
  for (const auto* const option : app.get_options()) {
    const auto name = option->get_name();
    if (const auto slips = distance(word, name); slips < least) {
      least = slips;
      nearest = name;
    }
  }
  return nearest;
}

std::string why_not_served(const std::string& flag) {
  static const std::map<std::string, std::string> reasons{
      {"-m", "ddprun starts programs; name python3 -m MODULE as the program"},
      {"--module", "ddprun starts programs; name python3 -m MODULE as the program"},
      {"--run-path", "ddprun starts programs; name python3 FILE as the program"},
      {"--start-method", "ranks are started by fork and exec, never as Python's processes"},
      {"--event-log-handler", "there are no event logs; what happens is said on standard error"},
      {"--logs-specs", "--log-dir, --redirects and --tee say where output goes"},
      {"--duplicate-stdout-filters", "name --local-ranks-filter, or grep what is shown"},
      {"--duplicate-stderr-filters", "name --local-ranks-filter, or grep what is shown"},
      {"--numa-binding", "--bind-cores gives each rank cores of its own, of one NUMA node where it can be"},
      {"--signals-to-handle", "INT, TERM, HUP, QUIT, USR1 and USR2 are passed on, always"},
      {"--virtual-local-rank", "every rank has its own LOCAL_RANK"},
  };
  auto name = flag.substr(0, flag.find('='));
  if (name.starts_with("--")) std::replace(name.begin() + 2, name.end(), '_', '-');
  const auto reason = reasons.find(name);
  return reason == reasons.end() ? std::string() : name + " of torchrun's is not served: " + reason->second;
}

}  // namespace ddp::launch
