#pragma once
/// output_plan.hpp: where the ranks' standard output and error go.

#include <set>
#include <string>
#include <vector>

namespace ddp::launch {

/// Of one rank: its output, its error, both or none of them. torchrun's Std.
struct Streams {
  bool output = false, error = false;
};

/// torchrun's values: "0" none, "1" output, "2" error, "3" both, for all ranks of this host; or "0:3,1:1" by local
/// rank, the others none. Errors: ConfigError that names `flag`.
std::vector<Streams> parse_streams(const std::string& text, int local_ranks, const char* flag);

/// torchrun's "0,2": local ranks; empty: all. Errors: ConfigError that names `flag`.
std::set<int> parse_ranks(const std::string& text, int local_ranks, const char* flag);

/// What one rank's streams go to, in both ways at once if need be.
struct Targets {
  bool to_console = true;
  std::string file = {};  ///< empty: none
};
struct RankTargets {
  Targets output, error;
};

struct OutputOptions {
  std::string log_folder = {};   ///< empty: none was asked for
  std::string redirects = {};    ///< as parse_streams() reads them; to a file and not to the console
  std::string tee = {};          ///< to both
  std::string shown_ranks = {};  ///< as parse_ranks() reads them
  bool is_inherited = false;     ///< ranks have the launcher's own streams
};

/// Where every local rank's streams go in one attempt. With a folder and neither `redirects` nor `tee` all go to both.
/// Files: FOLDER/attempt_0/1/stdout.log, of global rank 1 here.
/// Errors: ConfigError.
std::vector<RankTargets> plan_output(const OutputOptions& options, const std::string& folder, int first_rank,
                                     int local_ranks, int attempt);

/// Whether files are asked for.
bool wants_files(const OutputOptions& options);

/// A name for the folder of one job's files: its id, with "-2" where a job before had the same. Chosen by one launcher
/// for all, which may see the same disk.
std::string choose_log_name(const OutputOptions& options, const std::string& job_id);
/// That folder, made: below --log-dir, or below the system's folder for temporary files where only redirects or tee are
/// given. Errors: ConfigError.
std::string make_log_folder(const OutputOptions& options, const std::string& name);

}  // namespace ddp::launch
