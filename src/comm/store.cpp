#include "comm/store.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

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

#include "comm/text_of.hpp"
#include "ddp/error.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::string_view kPart = "init_process_group";
constexpr std::chrono::seconds kQuietWait{3};  // a launcher's ranks are apart by less; a user gets uneasy after it

Origin origin_of(const Environment& environment) { return {environment.rank, environment.world_size}; }

// Why nobody could be reached at the address; empty if somebody listens there.
std::string try_to_connect(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list); code != 0)
    return ::gai_strerror(code);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  std::string reason = "no address";
  for (const auto* address = list; address != nullptr; address = address->ai_next) {
    const int descriptor = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    const timeval limit{1, 0};  // a host that drops packets must not hold us for minutes
    ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const int result = ::connect(descriptor, address->ai_addr, address->ai_addrlen);
    reason = result == 0 ? "" : errno == EINPROGRESS ? "no answer" : std::strerror(errno);
    ::close(descriptor);
    if (result == 0) break;
  }
  return reason;
}

TimeoutError nobody_serves(const Environment& environment, const std::string& reason, std::chrono::milliseconds after) {
  return {origin_of(environment), kPart,
          "rank 0 does not serve the store at " + meeting_place(environment, {}) + " (" + reason + ") after " +
              in_seconds(after),
          "is rank 0 running, and do MASTER_ADDR and MASTER_PORT name its host?"};
}

// c10d's own client sleeps half a second and more between its attempts.
void wait_for_server(const Environment& environment, std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  bool told = false;
  for (auto pause = std::chrono::milliseconds(2);; pause = std::min(pause * 2, std::chrono::milliseconds(50))) {
    const auto reason = try_to_connect(environment.master_address, environment.master_port);
    if (reason.empty()) return;
    if (Clock::now() - start > timeout) throw nobody_serves(environment, reason, timeout);
    if (!told && Clock::now() - start > kQuietWait) {
      log::all.warn("waiting for rank 0 at {} ({})", meeting_place(environment, {}), reason);
      told = true;
    }
    std::this_thread::sleep_for(pause);
  }
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

// Rank 0 reaches its own server by the loopback: whether the others can reach MASTER_ADDR, the roll call tells.
StorePtr serve(const Environment& environment, std::chrono::milliseconds timeout) {
  require_resolvable(environment);
  auto options = tcp_options(environment, timeout);
  options.isServer = true;
  options.masterListenFd = environment.store_socket;
  try {
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& error) {
    throw ConfigError(origin_of(environment), kPart,
                      "cannot serve the store at " + meeting_place(environment, {}) + ": " + text_of(error),
                      "choose another MASTER_PORT, or end the program that uses it");
  }
}

// c10d's client waits without limit for the first answer of whoever listens: it gets a thread that can be left.
StorePtr connect_within(const Environment& environment, std::chrono::milliseconds timeout) {
  const auto promise = std::make_shared<std::promise<StorePtr>>();
  auto store = promise->get_future();
  std::thread([promise, address = environment.master_address, options = tcp_options(environment, timeout)] {
    try {
      promise->set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (timeout > kQuietWait && store.wait_for(kQuietWait) != std::future_status::ready)
    log::all.warn("waiting for rank 0 at {} (somebody listens there, but does not answer)",
                  meeting_place(environment, {}));
  if (store.wait_for(timeout) != std::future_status::ready)
    throw nobody_serves(environment, "it listens, but does not answer", timeout);
  return store.get();
}

StorePtr connect(const Environment& environment, std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  wait_for_server(environment, timeout);
  try {
    return connect_within(environment, timeout);
  } catch (const TimeoutError&) {
    throw;
  } catch (const std::exception& error) {
    if (Clock::now() - start >= timeout) throw nobody_serves(environment, "it listens, but does not answer", timeout);
    throw CommError(origin_of(environment), kPart,
                    "no store at " + meeting_place(environment, {}) + ": " + text_of(error),
                    "another program may use MASTER_PORT");
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
  return environment.master_address + ':' + std::to_string(environment.master_port);
}

StorePtr open_store(const Environment& environment, const std::string& file, std::chrono::milliseconds timeout) {
  static std::atomic<int> groups{0};  // every rank makes its groups in the same order
  const auto prefix =
      "ddp/" + environment.job_id + '/' + std::to_string(environment.restart_count) + '/' + std::to_string(groups++);
  StorePtr store;
  if (!file.empty()) {
    store = c10::make_intrusive<c10d::FileStore>(file, environment.world_size);
  } else if (environment.rank == 0 && !environment.agent_store) {
    store = served_here(environment, timeout);
  } else {
    store = connect(environment, timeout);
  }
  log::detail(log::Subsystem::init, "store at {}, keys under {}", meeting_place(environment, file), prefix);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

}  // namespace ddp::comm
