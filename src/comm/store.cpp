#include "comm/store.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/quiet.hpp"
#include "comm/stop_agreement.hpp"
#include "comm/store_probe.hpp"
#include "comm/text_of.hpp"
#include "ddp/error.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::string_view kPart = "init_process_group";
constexpr std::chrono::seconds kQuietWait{3};  // a launcher's ranks are apart by less; a user gets uneasy after it
constexpr std::chrono::seconds kSlice{5};      // for one answer after that: longer than a lost packet is repeated
constexpr std::chrono::milliseconds kPause{20};
constexpr std::chrono::milliseconds kOwnServerLimit{10'000};  // for a thread of this process to get its turn
constexpr std::chrono::seconds kTwinLimit{2};                 // a store on this host answers within milliseconds

constexpr const char* kJobKey = "ddp/job";
constexpr std::string_view kJobMark = "job ";  // before the id, which may be empty: a value is not

Origin origin_of(const Environment& environment) { return {environment.rank, environment.world_size}; }

TimeoutError nobody_serves(const Environment& environment, const std::string& reason, std::chrono::milliseconds after) {
  return {origin_of(environment), kPart,
          "rank 0 does not serve the store at " + meeting_place(environment, {}) + " (" + reason + ") after " +
              in_seconds(after),
          "is rank 0 running, and do MASTER_ADDR and MASTER_PORT name its host?"};
}

// Waits for a store to answer; returns the numeric address at which it does. LibTorch's own client sleeps
// half a second and more between its attempts, and prints a stack trace for each that fails.
std::string wait_for_server(const Environment& environment, std::chrono::milliseconds timeout) {
  const auto start = Clock::now(), end = start + timeout;
  bool told = false;
  std::string reason;
  for (;;) {
    if (told) require_no_wish(environment, kPart);
    const auto asked = Clock::now();
    const auto until = std::min(told ? asked + kSlice : start + kQuietWait, end);
    const auto answer = ask_store(environment.master_address, environment.master_port, until);
    if (answer.kind == StoreAnswer::Kind::serves) return answer.address;
    if (answer.kind == StoreAnswer::Kind::foreign)
      throw ConfigError(origin_of(environment), kPart,
                        "no store at " + meeting_place(environment, {}) + ", but " + answer.reason,
                        "give the job a MASTER_PORT that no other program uses");
    // An attempt that was cut short knows less than those before it.
    if (reason.empty() || Clock::now() - asked > kPause) reason = answer.reason;
    if (Clock::now() >= end) throw nobody_serves(environment, reason, timeout);
    if (!told && Clock::now() - start >= kQuietWait) {
      log::all.warn("waiting for rank 0 at {} ({})", meeting_place(environment, {}), reason);
      told = true;
    }
    std::this_thread::sleep_for(kPause);
  }
}

ConfigError cannot_serve(const Environment& environment, const std::string& reason) {
  return {origin_of(environment), kPart, "cannot serve the store at " + meeting_place(environment, {}) + ": " + reason,
          "choose another MASTER_PORT, or end the program that uses it"};
}

// Under no job's prefix, for all who come to see.
void say_whose(c10d::Store& store, const Environment& environment) {
  store.set(kJobKey, std::string(kJobMark) + environment.job_id);
}

c10d::TCPStoreOptions tcp_options(const Environment& environment, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

void require_resolvable(const Environment& environment) {
  const addrinfo hints{};
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(environment.master_address.c_str(), nullptr, &hints, &list); code != 0)
    throw ConfigError(origin_of(environment), kPart,
                      "MASTER_ADDR=" + environment.master_address + " does not resolve (" + ::gai_strerror(code) + ')',
                      "set it to the name or address of rank 0's host");
  ::freeaddrinfo(list);
}

// Without IPv6, nobody can be met at ::1; other addresses may become reachable.
void require_loopback(const Environment& environment) {
  if (environment.master_address != "::1") return;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const watch::Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket && ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
  throw ConfigError(origin_of(environment), kPart,
                    std::string("MASTER_ADDR=::1, but this host has no IPv6 (") + std::strerror(errno) + ')',
                    "use 127.0.0.1 or localhost");
}

// LibTorch's client waits without limit for the first answer of whoever listens: it gets a thread that can be left.
StorePtr connect_within(const Environment& environment, const std::string& address, std::chrono::milliseconds timeout) {
  const auto promise = std::make_shared<std::promise<StorePtr>>();
  auto store = promise->get_future();
  std::thread([promise, address, options = tcp_options(environment, timeout)] {
    const Quiet quiet;
    try {
      promise->set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (store.wait_for(timeout) != std::future_status::ready)
    throw nobody_serves(environment, "it does not answer any more", timeout);
  try {
    return store.get();
  } catch (const std::exception& error) {
    throw CommError(origin_of(environment), kPart,
                    "the store at " + meeting_place(environment, {}) + " has gone: " + text_of(error),
                    "look at the output of rank 0");
  }
}

StorePtr connect(const Environment& environment, std::chrono::milliseconds timeout) {
  require_loopback(environment);
  return connect_within(environment, wait_for_server(environment, timeout), timeout);
}

// The port is taken. Where a store is behind it, the roll call there tells who came twice, or whose it is.
StorePtr of_a_twin(const Environment& environment, std::chrono::milliseconds timeout) {
  const auto answer = ask_store("127.0.0.1", environment.master_port, Clock::now() + kTwinLimit);
  if (answer.kind == StoreAnswer::Kind::serves) return connect_within(environment, answer.address, timeout);
  throw ConfigError(
      origin_of(environment), kPart,
      "cannot serve the store at " + meeting_place(environment, {}) + ": the port is in use by another program",
      "choose another MASTER_PORT, end the program that uses it, or start with ddprun, which finds a free one");
}

// Null where the port is taken. Rank 0 reaches its own server by the loopback: whether the others can reach
// MASTER_ADDR, the roll call tells.
StorePtr serve(const Environment& environment, std::chrono::milliseconds timeout) {
  require_loopback(environment);
  require_resolvable(environment);
  auto options = tcp_options(environment, timeout);
  options.isServer = true;
  options.timeout = std::max(timeout, kOwnServerLimit);
  options.masterListenFd = environment.store_socket;
  if (environment.store_socket && !watch::is_listening(*environment.store_socket))
    throw cannot_serve(environment,
                       "DDP_STORE_FD=" + std::to_string(*environment.store_socket) + " is no socket that listens");
  // The launcher shares the socket and sees by its owner that this rank serves; else it would have another program do
  // so.
  if (environment.store_socket) ::fcntl(*environment.store_socket, F_SETOWN, ::getpid());
  if (!environment.store_socket) {
    auto port = take_store_port(environment.master_port);
    if (port.error == EADDRINUSE) return {};
    if (port.error != 0) throw cannot_serve(environment, std::strerror(port.error));
    options.masterListenFd = port.socket.release();  // the server's own from here
  }
  const Quiet quiet;
  try {
    StorePtr store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    store->setTimeout(timeout);
    say_whose(*store, environment);
    return store;
  } catch (const std::exception& error) {
    throw cannot_serve(environment, text_of(error));
  }
}

// Never destroyed: another rank may still use the server while this process makes its next group.
struct Servers {
  std::mutex mutex;
  std::map<std::string, StorePtr> by_place;
};

Servers& servers() {
  static auto* const all = new Servers;
  return *all;
}

StorePtr served_here(const Environment& environment, std::chrono::milliseconds timeout) {
  auto& all = servers();
  const std::lock_guard lock(all.mutex);
  auto& store = all.by_place[meeting_place(environment, {})];
  if (!store) store = serve(environment, timeout);
  return store;
}

}  // namespace

std::string meeting_place(const Environment& environment, const std::string& file) {
  if (!file.empty()) return file;
  const auto port = std::to_string(environment.master_port);
  if (environment.master_address.find(':') != std::string::npos) return '[' + environment.master_address + "]:" + port;
  return environment.master_address + ':' + port;
}

StorePtr open_store(const Environment& environment, const std::string& file, std::chrono::milliseconds timeout) {
  static std::atomic<int> groups{0};  // every rank makes its groups in the same order
  const auto prefix =
      "ddp/" + environment.job_id + '/' + std::to_string(environment.restart_count) + '/' + std::to_string(groups++);
  StorePtr store;
  if (!file.empty()) {
    store = c10::make_intrusive<c10d::FileStore>(file, environment.world_size);
  } else if (environment.rank == 0 && (environment.store_socket || !environment.agent_store)) {
    store = served_here(environment, timeout);
    if (!store) store = of_a_twin(environment, timeout);
  } else {
    store = connect(environment, timeout);
    if (environment.rank == 0) say_whose(*store, environment);
  }
  log::detail(log::Subsystem::init, "store at {}, keys under {}", meeting_place(environment, file), prefix);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

bool require_own_job(c10d::Store& store, const Environment& environment) {
  auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(&store);
  const auto all = prefixed == nullptr ? StorePtr() : prefixed->getUnderlyingStore();
  if (!all || dynamic_cast<c10d::TCPStore*>(all.get()) == nullptr) return true;  // a file is one job's
  if (!all->check({kJobKey})) return false;
  const auto mark = all->get_to_str(kJobKey);
  const auto owner = mark.substr(std::min(mark.size(), kJobMark.size()));
  if (owner == environment.job_id) return true;
  const auto named = [](const std::string& id) { return id.empty() ? "a job without an id" : "job \"" + id + '"'; };
  throw ConfigError(origin_of(environment), kPart,
                    "the store at " + meeting_place(environment, {}) + " is that of " + named(owner) +
                        ", this is a rank of " + named(environment.job_id),
                    "give each job a MASTER_PORT of its own, or start with ddprun, which finds a free one");
}

}  // namespace ddp::comm
