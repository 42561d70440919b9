#include "launch/launcher.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>

namespace ddp::launch {
namespace {

using std::chrono::milliseconds;

std::string store_program() {
  std::error_code none;
  return (std::filesystem::read_symlink("/proc/self/exe", none).parent_path() / "ddprun_store").string();
}

// timeout(1) and others signal a process and then its group: that is one Ctrl-C.
constexpr milliseconds kSame{500};

bool is_a_question(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

}  // namespace

Launcher::Launcher(const Options& options, RankPlan plan, Meeting meeting, Signals& signals)
    : options_(options),
      plan_(std::move(plan)),
      terms_(std::move(meeting.terms)),
      nodes_(std::move(meeting.nodes)),
      signals_(signals) {
  if (terms_.nodes > 1) {
    say(std::to_string(terms_.nodes) + " nodes have met, for " + std::to_string(terms_.world_size) +
        " ranks; this is node " + std::to_string(options.node_rank) + ", from rank " +
        std::to_string(terms_.first_rank) + " on");
  }
  if (!wants_files(options.output)) return;
  log_folder_ = make_log_folder(options.output, terms_.log_name.empty() ? terms_.id : terms_.log_name);
  say("output goes to " + log_folder_);
}

int Launcher::run() {
  for (;;) {
    look();
    while (const auto command = nodes_->next_command()) obey(*command);
    if (exit_code_) break;
    wait();
  }
  nodes_->part();
  return *exit_code_;
}

void Launcher::obey(const Command& command) {
  switch (command.kind) {
    case Command::Kind::start:
      if (options_.node_rank > 0 && !command.text.empty()) say(command.text);
      return begin(command.number);
    case Command::Kind::let_end:
      if (options_.node_rank > 0) say(command.text);
      if (attempt_) attempt_->ranks.let_end(command.number != 0);
      return;
    case Command::Kind::pass_on:
      if (attempt_) attempt_->ranks.pass_on(command.number);
      return;
    case Command::Kind::kill:
      if (attempt_) attempt_->ranks.kill();
      return;
    case Command::Kind::leave:
      if (!command.text.empty()) say(command.text);
      exit_code_ = command.number;
      return;
  }
}

void Launcher::begin(int number) {
  const auto restore = [this] {
    signals_.restore();
    limit_.restore();
  };
  attempt_ = std::make_unique<Attempt>(options_, watcher_, restore);
  const bool is_relayed = !options_.output.is_inherited && (terms_.world_size > 1 || wants_files(options_.output));
  if (is_relayed) {
    attempt_->relay =
        std::make_unique<Relay>(plan_output(options_.output, log_folder_, terms_.first_rank, options_.ranks, number),
                                terms_.first_rank, terms_.world_size);
    attempt_->says = std::make_unique<SayThrough>(attempt_->relay->own_lines());
  }
  if (options_.node_rank == 0) {
    attempt_->store =
        std::make_unique<StoreKeeper>(plan_.job.store_descriptor, plan_.job.master_port, store_program(), restore);
  }
  start_ranks(number);
}

void Launcher::start_ranks(int number) {
  auto job = plan_.job;
  job.restart = number;
  for (int local = 0; local < options_.ranks; ++local) {
    const auto index = static_cast<std::size_t>(local);
    Relay::RankEnds ends;
    if (attempt_->relay) ends = attempt_->relay->take_ends(local);
    start::RankStart start{.program = plan_.program,
                           .arguments = plan_.arguments,
                           .environment = start::rank_environment(plan_.environment, job, local),
                           .output = ends.output.get(),
                           .error = ends.error.get()};
    if (!plan_.cores.empty()) start.cores = plan_.cores[index];
    if (job.first_rank + local == 0 && job.store_descriptor >= 0) start.kept_descriptors = {job.store_descriptor};
    attempt_->ranks.start(job.first_rank + local, start);
  }
}

void Launcher::wait() {
  std::vector<pollfd> wanted{{signals_.descriptor(), POLLIN, 0}};
  auto next = nodes_->next_look();
  const auto consider = [&next](std::optional<Clock::time_point> other) {
    if (other) next = std::min(next.value_or(*other), *other);
  };
  const auto also = [&wanted](const std::vector<pollfd>& more) {
    wanted.insert(wanted.end(), more.begin(), more.end());
  };
  also(nodes_->wanted());
  if (attempt_) {
    consider(attempt_->ranks.next_look());
    if (attempt_->store && !attempt_->is_draining) {
      also(attempt_->store->wanted());
      consider(attempt_->store->next_look());
    }
    if (attempt_->relay) wanted.push_back({attempt_->relay->descriptor(), POLLIN, 0});  // ignored once it is over
  }
  int left = -1;
  if (next)
    left = static_cast<int>(std::max<std::int64_t>(0, std::chrono::ceil<milliseconds>(*next - Clock::now()).count()));
  ::poll(wanted.data(), wanted.size(), left);
}

void Launcher::look() {
  while (const auto signal = signals_.next()) on_signal(*signal);
  if (attempt_) {
    for (auto& outcome : attempt_->ranks.look()) {
      outcome.host = host_name();
      nodes_->rank_ended(outcome);
    }
    notice_lost_relay();
    if (attempt_->store) attempt_->store->look(attempt_->ranks.process_of(0));
    if (attempt_->ranks.are_gone()) end_attempt();
  }
  nodes_->look();
}

void Launcher::notice_lost_relay() {
  if (!attempt_->says || !attempt_->relay->is_over()) return;
  attempt_->says.reset();
  say("the process ddprun-relay, which carries the ranks' output, has been killed: ranks that write end by SIGPIPE");
}

// What has left its rank's process group is a child of this process by now. What was one before any rank, because a
// script has become this process by exec, is none of theirs.
void Launcher::end_strays() {
  std::set<pid_t> own(children_before_.begin(), children_before_.end());
  own.insert(watcher_.process());
  if (attempt_->relay) own.insert(attempt_->relay->process());
  if (attempt_->store) own.insert(attempt_->store->process());
  std::string names;
  for (const auto& one : descendants_of(::getpid())) {
    if (own.contains(one.parent)) own.insert(one.pid);
    if (own.contains(one.pid) || one.state == 'Z') continue;
    ::kill(one.pid, SIGKILL);
    names += (names.empty() ? "" : ", ") + one.name + " (" + std::to_string(one.pid) + ")";
  }
  if (!names.empty()) say("ending what ranks have left behind: " + names);
}

// What they have written may still be on its way; whoever reads it may take his time, or be told with Ctrl-C not to.
void Launcher::end_attempt() {
  auto& relay = attempt_->relay;
  if (!attempt_->is_draining) end_strays();
  if (relay && !attempt_->is_draining) {
    attempt_->says.reset();
    attempt_->is_draining = true;
    relay->finish();
  }
  if (relay && !relay->is_over()) return;
  const auto tails = relay ? relay->tails() : std::map<int, std::string>();
  attempt_.reset();
  std::map<int, std::string> by_rank;
  for (const auto& [local, text] : tails) by_rank[terms_.first_rank + local] = text;
  nodes_->ranks_are_gone(by_rank);
}

void Launcher::on_signal(int signal) {
  if (signal == SIGCHLD) return;  // look() sees who it was
  if (attempt_ && attempt_->is_draining && !is_a_question(signal)) attempt_->relay->give_up();
  if (signal == SIGINT && interrupted_ && Clock::now() - *interrupted_ < kSame) return;
  const bool again = signal == SIGINT && interrupted_;
  if (!interrupted_ && !is_a_question(signal)) interrupted_ = Clock::now();
  nodes_->signalled(again ? SIGKILL : signal);
}

}  // namespace ddp::launch
