#include "launch/store_keeper.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "launch/processes.hpp"
#include "launch/say.hpp"
#include "start/rank_environment.hpp"
#include "start/start_rank.hpp"

namespace ddp::launch {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A rank 0 of this library takes over after a third of a second, mostly spent on loading LibTorch; one that loads its
// data first leaves the others waiting for minutes.
constexpr milliseconds kFirstPause{20}, kLongestPause{200};

/// Inodes of this network's sockets that are connected to `port` somewhere.
std::set<std::string> connections_to(const std::string& table, std::uint16_t port) {
  char wanted[8];
  std::snprintf(wanted, sizeof wanted, ":%04X", port);
  std::set<std::string> inodes;
  std::ifstream file(table);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number, local, remote, state, skipped, inode;
    fields >> number >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) fields >> skipped;
    if (fields >> inode && remote.ends_with(wanted) && inode != "0") inodes.insert("socket:[" + inode + "]");
  }
  return inodes;
}

bool holds_one_of(const std::set<std::string>& sockets, pid_t pid) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", none)) {
    if (sockets.contains(std::filesystem::read_symlink(entry.path(), none).string())) return true;
  }
  return false;
}

}  // namespace

bool calls_at(pid_t pid, std::uint16_t port) {
  const auto tables = "/proc/" + std::to_string(pid) + "/net/";
  auto sockets = connections_to(tables + "tcp", port);
  sockets.merge(connections_to(tables + "tcp6", port));
  if (sockets.empty()) return false;
  if (holds_one_of(sockets, pid)) return true;
  return std::ranges::any_of(descendants_of(pid), [&](const Process& one) { return holds_one_of(sockets, one.pid); });
}

StoreKeeper::StoreKeeper(int socket, std::uint16_t port, std::string program, std::function<void()> restore)
    : socket_(socket), port_(port), program_(std::move(program)), restore_(std::move(restore)), pause_(kFirstPause) {
  if (socket_ >= 0) ::fcntl(socket_, F_SETOWN, 0);
}

bool StoreKeeper::is_owned() const { return ::fcntl(socket_, F_GETOWN) != 0; }

bool StoreKeeper::has_caller() const {
  pollfd ready{socket_, POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

std::vector<pollfd> StoreKeeper::wanted() const {
  if (socket_ < 0 || is_served_ || next_look_) return {};
  return {{socket_, POLLIN, 0}};
}

void StoreKeeper::look(pid_t rank_0) {
  if (socket_ < 0 || is_served_ || rank_0 == 0) return;
  next_look_.reset();
  if (!has_caller()) return;
  is_served_ = is_owned();
  if (is_served_) return;
  if (calls_at(rank_0, port_) && !is_owned()) return serve();
  next_look_ = Clock::now() + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
}

void StoreKeeper::serve() {
  is_served_ = true;
  if (::access(program_.c_str(), X_OK) != 0) {
    throw std::runtime_error("rank 0 does not serve the ranks' store itself, and there is no " + program_ +
                             " to serve it; install it beside ddprun");
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const Descriptor read_end(ends[0]);
  lifeline_ = Descriptor(ends[1]);
  pid_ = start::start_rank({.program = program_,
                            .arguments = {program_, std::to_string(socket_)},
                            .environment = start::own_environment(),
                            .kept_descriptors = {socket_},
                            .input = read_end.get()},
                           restore_);
  server_.emplace(pid_);
}

}  // namespace ddp::launch
