#pragma once
/// flags.hpp: the words of ddprun's command line, before anybody looks at what they say.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ddp::launch {

/// As typed, or from torchrun's variables.
struct Flags {
  std::string ranks;
  std::string nodes = "1";
  std::string node_rank;
  std::string master_address;
  std::string master_port;
  std::string local_address;
  std::string backend;
  std::string endpoint;
  std::string job_id;
  std::string rendezvous_settings;
  std::string max_restarts;
  std::string monitor_interval;
  std::string role;
  std::string log_folder;
  std::string redirects;
  std::string tee;
  std::string shown_ranks;
  std::string shutdown_timeout;
  std::string exit_grace;
  std::string inspected;
  bool standalone = false;
  bool binds_cores = false;
  bool inherits_output = false;
  bool only_shows = false;
  bool checks = false;
  bool checks_long = false;
  bool no_python = false;
  std::string program;            // named for the help alone:
  std::vector<std::string> args;  // the command is cut off before the flags are read
};

/// Adds the flags to `app`, whose parse() fills `flags`.
void declare(CLI::App& app, Flags& flags);

/// The flag of `app` that a word may have been meant to be; empty: none.
std::string nearest_flag(const std::string& word, const CLI::App& app);

/// Why one of torchrun's flags is refused: "--module: ...". Empty: it is none of those.
std::string why_not_served(const std::string& flag);

}  // namespace ddp::launch
