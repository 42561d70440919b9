#include "ranks.hpp"

#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "support/temp_folder.hpp"

namespace ddp::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kFailedExpectation = 90;
constexpr int kUncaughtException = 91;

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

struct Listener {
  int descriptor = -1;
  std::uint16_t port = 0;
};

Listener listen_on_loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  Listener listener;
  listener.descriptor = checked(::socket(AF_INET, SOCK_STREAM, 0), "socket");
  checked(::bind(listener.descriptor, reinterpret_cast<sockaddr*>(&address), length), "bind");
  checked(::listen(listener.descriptor, 128), "listen");
  checked(::getsockname(listener.descriptor, reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
  listener.port = ntohs(address.sin_port);
  return listener;
}

struct Child {
  pid_t pid = -1;
  int output = -1;   // read end of its output, -1 after end of file
  int process = -1;  // pidfd, -1 after it has ended
  Outcome outcome;
};

Environment environment_of(int rank, int world, const Listener& listener) {
  Environment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = world;
  environment.master_address = "127.0.0.1";
  environment.master_port = listener.port;
  environment.job_id = "test";
  environment.source = "code";
  if (rank == 0) environment.store_socket = listener.descriptor;
  return environment;
}

int failed_parts() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  int failed = 0;
  for (int i = 0; info != nullptr && i < info->result()->total_part_count(); ++i)
    failed += info->result()->GetTestPartResult(i).failed() ? 1 : 0;
  return failed;
}

int run_body(const std::function<void()>& body) {
  const int failed_before = failed_parts();
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exception: %s\n", error.what());
    return kUncaughtException;
  } catch (...) {
    std::fprintf(stderr, "exception of an unknown type\n");
    return kUncaughtException;
  }
  return failed_parts() > failed_before ? kFailedExpectation : 0;
}

Child start_child(int rank, const std::function<void()>& body, bool run_exit_handlers) {
  int ends[2];
  checked(::pipe2(ends, O_CLOEXEC), "pipe2");
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  Child child;
  child.outcome.rank = rank;
  child.pid = checked(::fork(), "fork");
  if (child.pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    const int code = run_body(body);
    if (run_exit_handlers) std::exit(code);
    std::fflush(nullptr);
    ::_exit(code);
  }
  ::close(ends[1]);
  child.output = ends[0];
  child.process = checked(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)), "pidfd_open");
  return child;
}

void read_output(Child& child) {
  char buffer[4096];
  const ssize_t count = ::read(child.output, buffer, sizeof buffer);
  if (count > 0) {
    child.outcome.output.append(buffer, static_cast<std::size_t>(count));
  } else if (count == 0 || errno != EINTR) {
    ::close(child.output);
    child.output = -1;
  }
}

void reap(Child& child) {
  int status = 0;
  checked(::waitpid(child.pid, &status, 0), "waitpid");
  child.outcome.ended = Clock::now();
  if (WIFEXITED(status)) child.outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) child.outcome.signal = WTERMSIG(status);
  ::close(child.process);
  child.process = -1;
}

// Reads and reaps until all have ended. What a child's own children still hold open is not waited for.
void attend(std::vector<Child>& children, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  bool killed = false;
  for (;;) {
    std::vector<pollfd> polled;
    std::vector<std::function<void()>> actions;
    bool running = false;
    for (auto& child : children) {
      if (child.output >= 0)
        polled.push_back({child.output, POLLIN, 0}), actions.push_back([&] { read_output(child); });
      if (child.process >= 0) polled.push_back({child.process, POLLIN, 0}), actions.push_back([&] { reap(child); });
      running |= child.process >= 0;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (polled.empty()) return;
    const int ready = ::poll(polled.data(), polled.size(), running ? (killed ? -1 : std::max<int>(0, left)) : 0);
    if (ready == 0 && !running) return;
    if (ready == 0) {
      killed = true;
      for (auto& child : children) {
        if (child.process < 0) continue;
        child.outcome.out_of_time = true;
        ::kill(child.pid, SIGKILL);
      }
    }
    for (std::size_t i = 0; ready > 0 && i < polled.size(); ++i)
      if (polled[i].revents != 0) actions[i]();
  }
}

std::string indented(const std::string& text, int rank) {
  std::string result;
  std::size_t begin = 0;
  while (begin < text.size()) {
    auto end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    result += "\n  [rank " + std::to_string(rank) + "] " + text.substr(begin, end - begin);
    begin = end + 1;
  }
  return result;
}

// What ranks leave at a failure goes with the test, unless that has said where it is to be.
class FolderOfDumps {
 public:
  FolderOfDumps() {
    if (is_own_) ::setenv(kName, folder_.path().c_str(), 1);
  }
  ~FolderOfDumps() {
    if (is_own_) ::unsetenv(kName);
  }
  FolderOfDumps(const FolderOfDumps&) = delete;
  FolderOfDumps& operator=(const FolderOfDumps&) = delete;

 private:
  static constexpr const char* kName = "DDP_DUMP_DIR";
  const TempFolder folder_;
  const bool is_own_ = std::getenv(kName) == nullptr;
};

}  // namespace

std::string Outcome::ending() const {
  if (out_of_time) return "killed by the harness: out of time";
  if (signal != 0) return "signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  if (exit_code == kFailedExpectation) return "a failed expectation";
  if (exit_code == kUncaughtException) return "an exception";
  return "exit code " + std::to_string(exit_code);
}

std::vector<Outcome> observe_ranks(int world, const std::function<void(const Environment&)>& body,
                                   const RanksOptions& options) {
  const FolderOfDumps dumps;
  const auto listener = listen_on_loopback();
  std::vector<Child> children;
  for (int rank = 0; rank < world; ++rank) {
    children.push_back(start_child(
        rank,
        [&] {
          if (rank != 0) ::close(listener.descriptor);
          body(environment_of(rank, world, listener));
        },
        options.run_exit_handlers));
  }
  ::close(listener.descriptor);
  attend(children, options.limit);
  std::vector<Outcome> outcomes;
  for (auto& child : children) {
    if (child.output >= 0) ::close(child.output);
    outcomes.push_back(std::move(child.outcome));
  }
  return outcomes;
}

void run_ranks(int world, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body,
               const RanksOptions& options) {
  const auto with_group = [&](const Environment& environment) {
    ProcessGroupOptions group_options;
    group_options.backend = options.backend;
    group_options.timeout = options.group_timeout;
    group_options.environment = environment;
    group_options.store_file = options.store_file;
    const auto group = init_process_group(group_options);
    try {
      body(group);
    } catch (const std::exception& error) {
      group->fail(error.what());
      throw;
    }
    group->shutdown();
  };
  for (const auto& outcome : observe_ranks(world, with_group, options)) {
    if (outcome.succeeded()) continue;
    ADD_FAILURE() << "rank " << outcome.rank << " of " << world << " ended by " << outcome.ending()
                  << indented(outcome.output, outcome.rank);
  }
}

void become_program(const Environment& environment, const std::string& path,
                    const std::vector<std::string>& arguments) {
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(environment.rank));
  set("WORLD_SIZE", std::to_string(environment.world_size));
  set("LOCAL_RANK", std::to_string(environment.local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(environment.local_world_size));
  set("MASTER_ADDR", environment.master_address);
  set("MASTER_PORT", std::to_string(environment.master_port));
  if (environment.store_socket) set("DDP_STORE_FD", std::to_string(*environment.store_socket));
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  throw std::system_error(errno, std::generic_category(), "execv " + path);
}

::testing::AssertionResult same_on_all_ranks(ProcessGroup& group, const at::Tensor& tensor) {
  const auto dense = tensor.detach().contiguous();
  std::string bytes = c10::toString(dense.scalar_type());
  for (const auto size : dense.sizes()) bytes += ' ' + std::to_string(size);
  bytes += '\n';
  bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  const auto all = group.all_gather_bytes(bytes);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto header = [](const std::string& text) { return text.substr(0, text.find('\n')); };
    return ::testing::AssertionFailure() << "rank " << rank << " (" << header(all[rank]) << ") differs from rank 0 ("
                                         << header(all[0]) << ")";
  }
  return ::testing::AssertionSuccess();
}

Gate::Gate() { checked(::pipe(descriptors_), "pipe"); }

Gate::~Gate() {
  ::close(descriptors_[0]);
  ::close(descriptors_[1]);
}

void Gate::open(int passes) const {
  const std::string tokens(static_cast<std::size_t>(passes), 'x');
  checked(static_cast<int>(::write(descriptors_[1], tokens.data(), tokens.size())), "write");
}

void Gate::pass() const {
  char token = 0;
  checked(static_cast<int>(::read(descriptors_[0], &token, 1)), "read");
}

}  // namespace ddp::testing
