// What the tests of ddp::spawn() start: spawn_program ACTION [arguments].
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"

namespace {

using Words = std::vector<std::string>;
using namespace std::chrono_literals;

/// One write, so that lines of several ranks stay whole.
void print(const std::string& text) {
  const auto line = text + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::_Exit(90);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "(unset)";
}

bool is_rank() { return variable("RANK") != "(unset)"; }

[[noreturn]] void wait_forever() {
  for (;;) ::pause();
}

/// Prints what came of `call`.
void tell(const std::function<void()>& call) {
  try {
    call();
    print("all well");
  } catch (const ddp::SpawnError& error) {
    print("SpawnError of rank " + std::to_string(error.rank()) + ", code " + std::to_string(error.exit_code()) +
          ", signal " + std::to_string(error.signal()) + ", thrown <" + error.thrown() + ">: " + error.what());
  } catch (const ddp::ConfigError& error) {
    print(std::string("ConfigError: ") + error.what());
  } catch (const std::logic_error& error) {
    print(std::string("logic_error: ") + error.what());
  }
}

float sum_over_ranks(float value) {
  const auto group = ddp::init_process_group();
  auto tensor = torch::full({10}, value);
  group->all_reduce(tensor);
  return tensor[0].item<float>();
}

/// How this process began, before main() changed anything.
struct Began {
  std::string descriptors, folder, signals;
  Began() {
    for (int fd = 0; fd < 256; ++fd) {
      std::error_code none;
      const auto target = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
      if (!none)
        descriptors += " " + (fd < 3 ? std::to_string(fd) : target.string().substr(0, target.string().find(':')));
    }
    folder = std::filesystem::current_path().string();
    sigset_t blocked;
    ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
    struct sigaction hangup{};
    ::sigaction(SIGHUP, nullptr, &hangup);
    signals = std::string(::sigismember(&blocked, SIGTERM) ? "SIGTERM blocked" : "SIGTERM open") +
              (hangup.sa_handler == SIG_IGN ? ", SIGHUP ignored" : ", SIGHUP not ignored");
  }
};

// Trains a network on the ranks' shares of a batch.

torch::Tensor batch() {
  torch::manual_seed(3);
  return torch::randn({12, 4}, torch::kDouble);
}

torch::nn::Linear network() {
  torch::manual_seed(5);
  torch::nn::Linear net(4, 2);
  net->to(torch::kDouble);
  return net;
}

template <class Model>
void train(Model& model, torch::nn::Linear& net, const torch::Tensor& input) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    torch::tanh(model(input)).pow(2).mean().backward();
    optimizer.step();
  }
}

/// FILE: of the trained weights
void train_as_one(const Words& words) {
  const int ranks = 2;
  ddp::spawn(ranks, [&](int local_rank) {
    const auto group = ddp::init_process_group();
    if (group->rank() != local_rank || group->size() != ranks) throw std::runtime_error("another rank than said");
    auto net = network();
    ddp::DistributedDataParallel model(net, group);
    train(model, net, batch().chunk(ranks)[static_cast<std::size_t>(local_rank)]);
    if (local_rank == 0) torch::save(net, words.at(0));
  });
  auto alone = network();
  train(alone, alone, batch());
  auto trained = network();
  torch::load(trained, words.at(0));
  print(torch::allclose(trained->weight, alone->weight, 1e-12, 1e-14) ? "as one process" : "other weights");
}

/// Threads of OpenMP, of a DataLoader, and one that is never outside of the allocator or a lock for long.
void among_threads(const Words&) {
  at::set_num_threads(2);
  std::atomic<std::int64_t> seen{0};
  at::parallel_for(0, 1000, 1, [&](std::int64_t begin, std::int64_t end) { seen += end - begin; });
  std::mutex mutex;
  std::jthread busy([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const std::lock_guard lock(mutex);
      const std::vector<std::string> memory(100, std::string(1000, 'x'));
    }
  });
  auto data =
      torch::data::datasets::TensorDataset(batch()).map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(data), torch::data::DataLoaderOptions(3).workers(2));
  for (auto& example : *loader) seen += example.data.size(0);
  ddp::spawn(3, [&](int local_rank) {
    print("sum " + std::to_string(static_cast<int>(sum_over_ranks(static_cast<float>(seen + local_rank)))));
  });
  print("seen " + std::to_string(seen));
}

/// RANK WHAT: that rank fails in that way, while the others wait for it in a collective.
void fail(const Words& words) {
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const std::map<std::string, std::function<void()>> ways{
      {"throw", [] { throw std::runtime_error("no memory for the batch"); }},
      {"int", [] { throw 42; }},
      {"bad_alloc", [] { throw std::bad_alloc(); }},
      {"error", [] { throw ddp::GradientError({1, 3}, "reducer", "no gradient for fc.weight", "freeze it"); }},
      {"segfault", [] { ::raise(SIGSEGV); }},
      {"killed", [] { ::raise(SIGKILL); }},
      {"exit0", [] { std::exit(0); }},
      {"exit3", [] { std::exit(3); }},
      {"_exit0", [] { ::_exit(0); }},
  };
  const int bad = std::stoi(words.at(0));
  tell([&] {
    ddp::spawn(3, [&](int local_rank) {
      const auto group = ddp::init_process_group();
      if (local_rank == bad) ways.at(words.at(1))();
      auto tensor = torch::ones({10});
      group->all_reduce(tensor);
    });
  });
}

/// Before there is a group.
void fail_alone(const Words&) {
  tell([] {
    ddp::spawn(2, [](int local_rank) {
      if (local_rank == 1) throw std::bad_alloc();
    });
  });
}

/// Rank 0 throws, rank 1 stays and bears SIGTERM.
void stubborn(const Words&) {
  const auto start = std::chrono::steady_clock::now();
  tell([] {
    ddp::spawn(2,
               [](int local_rank) {
                 if (local_rank == 0) throw std::runtime_error("the first");
                 std::signal(SIGTERM, [](int) { print("asked to end"); });
                 print("pid " + std::to_string(::getpid()));
                 wait_forever();
               },
               {.shutdown_timeout = 200ms});
  });
  print(std::chrono::steady_clock::now() - start < 6s ? "in time" : "late");
}

void stay(const Words&) {
  ddp::spawn(3, [](int) {
    print("pid " + std::to_string(::getpid()));
    wait_forever();
  });
}

void twice(const Words&) {
  for (int round = 0; round < 2; ++round) {
    ddp::spawn(2, [&](int local_rank) {
      if (local_rank == 0) print("round " + std::to_string(round) + ": " + std::to_string(sum_over_ranks(2)));
      if (local_rank == 1) sum_over_ranks(1);
    });
  }
  ddp::spawn(1, [](int) { print("once more"); });
  print("behind");
}

void again_after_a_failure(const Words&) {
  int failed = -1, attempts = 0;
  for (bool well = false; !well; ++attempts) {
    try {
      ddp::spawn(2, [&](int local_rank) {
        if (attempts == 0 && local_rank == 1) throw std::runtime_error("the first attempt");
        if (attempts == 1) print("attempt 1 after rank " + std::to_string(failed));
      });
      well = true;
    } catch (const ddp::SpawnError& error) {
      failed = error.rank();
    }
  }
  print("attempts " + std::to_string(attempts));
}

/// NODE PORT
void node(const Words& words) {
  tell([&] {
    ddp::spawn(2,
               [](int local_rank) {
                 const auto sum = sum_over_ranks(1);
                 print("rank " + variable("RANK") + " of " + variable("WORLD_SIZE") + ", local " +
                       std::to_string(local_rank) + " of " + variable("LOCAL_WORLD_SIZE") + ", node " +
                       variable("GROUP_RANK") + ": " + std::to_string(static_cast<int>(sum)));
               },
               {.nnodes = 2,
                .node_rank = std::stoi(words.at(0)),
                .master_addr = "127.0.0.1",
                .master_port = static_cast<std::uint16_t>(std::stoi(words.at(1)))});
  });
}

void wrong(const Words&) {
  const auto body = [](int) {};
  tell([&] { ddp::spawn(0, body); });
  tell([&] { ddp::spawn(1, body, {.nnodes = 0}); });
  tell([&] { ddp::spawn(1, body, {.nnodes = 2, .node_rank = 2, .master_addr = "a", .master_port = 1}); });
  tell([&] { ddp::spawn(1, body, {.node_rank = -1}); });
  tell([&] { ddp::spawn(1, body, {.nnodes = 2, .master_port = 1}); });
  tell([&] { ddp::spawn(1, body, {.nnodes = 2, .master_addr = "a"}); });
  tell([&] { ddp::spawn(1, nullptr); });
}

void nested(const Words&) {
  ddp::spawn(1, [](int) { tell([] { ddp::spawn(1, [](int) {}); }); });
}

void greet(const Words&) {
  tell([] { ddp::spawn(2, [](int local_rank) { print("rank " + std::to_string(local_rank)); }); });
}

/// FILE: a named pipe, from which the word comes to go on.
void greet_after(const Words& words) {
  if (!is_rank()) {
    print("started");
    std::string word;
    std::ifstream(words.at(0)) >> word;
  }
  greet({});
}

/// A rank finds everything as this process did.
void begin_alike(const Words&) {
  const Began began;
  if (::open("/dev/null", O_RDONLY) < 0 || ::chdir("/") != 0) std::exit(91);
  std::signal(SIGHUP, SIG_IGN);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  ddp::spawn(2, [&](int local_rank) {
    const auto rank = "rank " + std::to_string(local_rank) + " ";
    print(rank + "open:" + began.descriptors);
    print(rank + "in " + began.folder);
    print(rank + began.signals);
    std::string word;
    print(rank + (std::cin >> word ? "read " + word : "reads nothing"));
    print(rank + "threads " + variable("OMP_NUM_THREADS"));
  });
}

void on_two_threads(const Words&) {
  const auto share = [](int first) {
    return [first](int local_rank) {
      print("first " + std::to_string(first) + ": " +
            std::to_string(static_cast<int>(sum_over_ranks(static_cast<float>(first + local_rank)))));
    };
  };
  std::thread one([&] { ddp::spawn(2, share(10)); });
  std::thread other([&] { ddp::spawn(2, share(100)); });
  one.join();
  other.join();
  print("both");
}

/// Two threads in one call: the first is in it until the second has been refused.
void on_one_line(const Words& words) {
  const auto file = words.at(0);
  const auto call = [&] {
    ddp::spawn(1, [&](int) {
      const int there = ::open(file.c_str(), O_RDONLY);  // a named pipe: until somebody writes
      char byte = 0;
      if (::read(there, &byte, 1) != 1) std::exit(92);
    });
  };
  std::thread first(call);
  if (is_rank()) wait_forever();
  const int there = ::open(file.c_str(), O_WRONLY);  // returns once the first one's rank reads
  tell(call);
  if (::write(there, "x", 1) != 1) std::exit(93);
  first.join();
  print("the first is well");
}

void ignoring_children(const Words& words) {
  std::signal(SIGCHLD, SIG_IGN);
  tell([&] {
    ddp::spawn(2, [&](int local_rank) {
      if (local_rank == 1 && !words.empty()) std::exit(3);
    });
  });
}

/// A child of the program's own is still there to be waited for, and its signals are what they were.
void beside_a_child(const Words&) {
  static volatile std::sig_atomic_t heard = 0;
  std::signal(SIGCHLD, [](int) { heard = 1; });
  const pid_t child = ::fork();
  if (child == 0) ::_exit(7);
  ddp::spawn(2, [](int) {});
  int status = 0;
  const bool waited = ::waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7;
  sigset_t blocked;
  ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
  print(waited && heard == 1 && ::sigismember(&blocked, SIGINT) == 0 ? "undisturbed" : "disturbed");
}

/// CODE: ranks leave main() before they come to spawn().
void leave_before(const Words& words) {
  if (is_rank()) std::exit(std::stoi(words.at(0)));
  tell([] { ddp::spawn(2, [](int) {}); });
}

void crash_at_exit(const Words&) {
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  tell([] { ddp::spawn(1, [](int) { std::atexit([] { ::raise(SIGSEGV); }); }); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void(const Words&)>> actions{
      {"train_as_one", train_as_one},
      {"among_threads", among_threads},
      {"fail", fail},
      {"fail_alone", fail_alone},
      {"stubborn", stubborn},
      {"stay", stay},
      {"twice", twice},
      {"node", node},
      {"wrong", wrong},
      {"nested", nested},
      {"greet", greet},
      {"begin_alike", begin_alike},
      {"on_two_threads", on_two_threads},
      {"on_one_line", on_one_line},
      {"ignoring_children", ignoring_children},
      {"beside_a_child", beside_a_child},
      {"leave_before", leave_before},
      {"crash_at_exit", crash_at_exit},
      {"greet_after", greet_after},
      {"again_after_a_failure", again_after_a_failure},
  };
  ::alarm(50);  // no run of these tests lasts as long; a forgotten one must not stay
  actions.at(argv[1])(Words(argv + 2, argv + argc));
  return 0;
}
