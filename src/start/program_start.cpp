#include "start/program_start.hpp"

#include <pthread.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

namespace ddp::start {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOwnFile = "/proc/self/exe";

std::vector<std::string> arguments_of_this_process() {
  std::vector<std::string> arguments;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(file, word, '\0');) arguments.push_back(word);
  if (arguments.empty()) arguments.emplace_back(kOwnFile);
  return arguments;
}

bool is_ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_IGN;
}

ProgramStart read() {
  ProgramStart start;
  start.arguments = arguments_of_this_process();
  std::error_code none;
  start.folder = fs::current_path(none).string();
  ::pthread_sigmask(SIG_SETMASK, nullptr, &start.blocked);
  ::sigemptyset(&start.ignored);
  for (int signal = 1; signal < NSIG; ++signal) {
    if (is_ignored(signal)) ::sigaddset(&start.ignored, signal);
  }
  return start;
}

[[maybe_unused]] const ProgramStart& before_main = program_start();

}  // namespace

const ProgramStart& program_start() {
  static const ProgramStart start = read();
  return start;
}

// By its name where that is still the same file: the kernel names a process after the path that it is started by.
std::string own_program() {
  std::error_code none;
  const auto path = fs::read_symlink(kOwnFile, none);
  return !path.empty() && fs::equivalent(path, kOwnFile, none) ? path.string() : kOwnFile;
}

void restore(const ProgramStart& start) {
  if (!start.folder.empty()) [[maybe_unused]]
    const int gone = ::chdir(start.folder.c_str());
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action{};
    action.sa_handler = ::sigismember(&start.ignored, signal) == 1 ? SIG_IGN : SIG_DFL;
    ::sigaction(signal, &action, nullptr);  // those that nobody can have refuse
  }
  ::pthread_sigmask(SIG_SETMASK, &start.blocked, nullptr);
}

}  // namespace ddp::start
