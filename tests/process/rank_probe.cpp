// What the tests of ddprun start as ranks: rank_probe ACTION [arguments].

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

using Words = std::vector<std::string>;

std::string variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value ? value : "(unset)";
}

int rank() { return std::stoi(variable("RANK")); }
int world_size() { return std::stoi(variable("WORLD_SIZE")); }

/// One write, so that lines of several ranks stay whole.
void print(const std::string& text) {
  const std::string line = "[" + std::to_string(rank()) + "] " + text + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::exit(90);
}

[[noreturn]] void wait_forever() {
  for (;;) ::pause();
}

void require(bool ok, const char* what) {
  if (ok) return;
  print(std::string("failed: ") + what);
  std::exit(91);
}

int variables(const Words& names) {
  for (const auto& name : names) print(name + "=" + variable(name));
  return 0;
}

int show_and_stay(const Words& names) {
  variables(names);
  wait_forever();
}

int arguments(const Words& words) {
  for (const auto& word : words) print("<" + word + ">");
  return 0;
}

int descriptors(const Words&) {
  std::string open;
  for (int fd = 0; fd < 1024; ++fd) {
    std::error_code none;
    const auto target = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
    if (!none) open += " " + (fd < 3 ? std::to_string(fd) : target.string().substr(0, target.string().find(':')));
  }
  print("open:" + open);
  return 0;
}

/// RANK CODE: that rank leaves with that code, the others with 0.
int leave(const Words& words) { return rank() == std::stoi(words.at(0)) ? std::stoi(words.at(1)) : 0; }

/// RANK CODE: that rank leaves with that code, the others never.
int leave_alone(const Words& words) {
  if (rank() == std::stoi(words.at(0))) return std::stoi(words.at(1));
  wait_forever();
}

/// RANK SIGNAL: that rank dies of that signal, the others leave with 0.
int die(const Words& words) {
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (rank() == std::stoi(words.at(0))) {
    const int number = std::stoi(words.at(1));
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  return 0;
}

/// Rank 0 accepts on the socket that it was handed; the others connect. Both sides say which job they belong to.
/// Returns the connections.
std::vector<int> connect_ranks() {
  const auto job = variable("TORCHELASTIC_RUN_ID");
  char heard[128] = {};
  std::vector<int> connections;
  if (rank() == 0) {
    const int listening = std::stoi(variable("DDP_STORE_FD"));
    for (int other = 1; other < world_size(); ++other) connections.push_back(::accept(listening, nullptr, nullptr));
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT"))));
    ::inet_pton(AF_INET, variable("MASTER_ADDR").c_str(), &address.sin_addr);
    connections.push_back(::socket(AF_INET, SOCK_STREAM, 0));
    require(::connect(connections[0], reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect at once");
  }
  for (const int connection : connections) {
    require(::send(connection, job.data(), job.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(job.size()), "send");
    require(::recv(connection, heard, job.size(), MSG_WAITALL) == static_cast<ssize_t>(job.size()), "receive");
    require(heard == job, "the other is of this job");
  }
  return connections;
}

int meet(const Words&) {
  if (rank() == 0) {
    const int fd = std::stoi(variable("DDP_STORE_FD"));
    int listening = 0;
    socklen_t size = sizeof listening;
    require(::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening, "the socket listens");
  }
  connect_ranks();
  print("met");
  return 0;
}

/// Rank 1 is killed once all are connected; the others notice and leave with 1.
int lose_rank_1(const Words&) {
  const auto connections = connect_ranks();
  if (rank() == 1) std::raise(SIGKILL);
  std::vector<pollfd> watched;
  for (const int connection : connections) watched.push_back({connection, POLLIN, 0});
  ::poll(watched.data(), watched.size(), -1);
  return 1;
}

/// Each rank leaves a child that sleeps, tells both ids, and waits. Arguments: signals that both ignore.
int family(const Words& ignored) {
  for (const auto& number : ignored) std::signal(std::stoi(number), SIG_IGN);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execlp("sleep", "sleep", "1000", static_cast<char*>(nullptr));
    std::_Exit(93);
  }
  print("pids " + std::to_string(::getpid()) + " " + std::to_string(child));
  wait_forever();
}

/// Leaves a child that sleeps, and ends well.
int leave_child(const Words&) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execlp("sleep", "sleep", "1000", static_cast<char*>(nullptr));
    std::_Exit(93);
  }
  print("pids " + std::to_string(child) + " " + std::to_string(child));
  return 0;
}

/// Ends with 0 on SIGTERM, as a program that saves its work does.
int save_on_term(const Words&) {
  std::signal(SIGTERM, [](int) { std::_Exit(0); });
  print("pids " + std::to_string(::getpid()) + " " + std::to_string(::getpid()));
  wait_forever();
}

/// Says "asked" at SIGUSR2 and ends with 0.
int answer_usr2(const Words&) {
  std::signal(SIGUSR2, [](int) {
    if (::write(STDOUT_FILENO, "asked\n", 6) != 6) std::_Exit(90);
    std::_Exit(0);
  });
  print("pids " + std::to_string(::getpid()) + " " + std::to_string(::getpid()));
  wait_forever();
}

/// COUNT: that many lines on standard output and on standard error, in pieces that end anywhere.
int many_lines(const Words& words) {
  const int count = std::stoi(words.at(0));
  std::string output, error;
  const auto send = [](std::string& text, int fd, std::size_t keep) {
    while (text.size() > keep) {
      const auto piece = std::min<std::size_t>(text.size(), 777);
      const ssize_t size = ::write(fd, text.data(), piece);
      if (size < 0) std::exit(90);
      text.erase(0, static_cast<std::size_t>(size));
    }
  };
  for (int i = 0; i < count; ++i) {
    const auto line =
        variable("RANK") + " " + std::to_string(i) + " " + std::string(static_cast<std::size_t>(i % 60), 'x');
    output += "out " + line + " end\n";
    error += "err " + line + " end\n";
    send(output, STDOUT_FILENO, 4000);
    send(error, STDERR_FILENO, 4000);
  }
  send(output, STDOUT_FILENO, 0);
  send(error, STDERR_FILENO, 0);
  return 0;
}

/// RANK CODE TEXT...: that rank says these lines on standard error and leaves with that code.
int complain(const Words& words) {
  if (rank() != std::stoi(words.at(0))) return 0;
  for (std::size_t i = 2; i < words.size(); ++i) std::fprintf(stderr, "%s\n", words[i].c_str());
  return std::stoi(words.at(1));
}

/// Which standard streams are terminals, and a progress bar on standard error.
int terminals(const Words&) {
  print(std::string("terminals:") + (::isatty(1) ? " output" : "") + (::isatty(2) ? " error" : ""));
  for (const char* const text : {"\r10 %\x1b[K\r", "\r20 %\x1b[K\r", "\r30 %\x1b[K\n"}) std::fputs(text, stderr);
  return 0;
}

/// N: every attempt before the n-th restart fails on the last rank.
int fail_until(const Words& words) {
  const int attempt = std::stoi(variable("TORCHELASTIC_RESTART_COUNT"));
  print("attempt " + std::to_string(attempt) + " of " + variable("TORCHELASTIC_MAX_RESTARTS") + " job " +
        variable("TORCHELASTIC_RUN_ID"));
  return attempt < std::stoi(words.at(0)) && rank() + 1 == world_size() ? 7 : 0;
}

/// RANK: that rank ends well at once, the others never.
int leave_others(const Words& words) {
  if (rank() == std::stoi(words.at(0))) return 0;
  wait_forever();
}

/// SIGUSR1 is answered with a line, by all ranks; then they end well.
int answer_usr1(const Words&) {
  std::signal(SIGUSR1, [](int) {
    if (::write(STDOUT_FILENO, "stopping\n", 9) != 9) std::_Exit(90);
    std::_Exit(0);
  });
  print("ready");
  wait_forever();
}

/// Tells each SIGINT, and ends well a while after the first.
int count_interrupts(const Words&) {
  std::signal(SIGINT, [](int) {
    if (::write(STDOUT_FILENO, "interrupted\n", 12) != 12) std::_Exit(90);
  });
  print("pids " + std::to_string(::getpid()) + " " + std::to_string(::getpid()));
  ::pause();
  ::usleep(500'000);  // another one would come within it; this is what is tried
  return 0;
}

/// Takes longer to save than a rank has after another one's failure.
int save_slowly_on_term(const Words&) {
  static volatile std::sig_atomic_t told = 0;
  std::signal(SIGTERM, [](int) { told = 1; });
  print("pids " + std::to_string(::getpid()) + " " + std::to_string(::getpid()));
  while (told == 0) ::usleep(1000);
  for (int i = 0; i < 6; ++i) ::sleep(1);
  print("saved");
  return 0;
}

/// The cores that it may use.
int cores(const Words&) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  std::string text = "cores:";
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) text += " " + std::to_string(core);
  }
  print(text + " threads: " + variable("OMP_NUM_THREADS"));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int(const Words&)>> actions{{"answer_usr1", answer_usr1},
                                                                        {"answer_usr2", answer_usr2},
                                                                        {"complain", complain},
                                                                        {"cores", cores},
                                                                        {"count_interrupts", count_interrupts},
                                                                        {"save_slowly_on_term", save_slowly_on_term},
                                                                        {"fail_until", fail_until},
                                                                        {"leave_others", leave_others},
                                                                        {"many_lines", many_lines},
                                                                        {"terminals", terminals},
                                                                        {"variables", variables},
                                                                        {"show_and_stay", show_and_stay},
                                                                        {"arguments", arguments},
                                                                        {"descriptors", descriptors},
                                                                        {"leave", leave},
                                                                        {"leave_alone", leave_alone},
                                                                        {"die", die},
                                                                        {"meet", meet},
                                                                        {"lose_rank_1", lose_rank_1},
                                                                        {"family", family},
                                                                        {"leave_child", leave_child},
                                                                        {"save_on_term", save_on_term}};
  ::alarm(50);  // no run of these tests lasts as long; a forgotten one must not stay
  return actions.at(argv[1])(Words(argv + 2, argv + argc));
}
