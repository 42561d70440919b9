#include "launch/processes.hpp"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

namespace ddp::launch {
namespace {

void take_line(const std::string& line, Process& process) {
  const auto colon = line.find(':');
  if (colon == std::string::npos) return;
  const auto field = std::string_view(line).substr(0, colon);
  std::istringstream rest(line.substr(colon + 1));
  if (field == "Name") rest >> std::ws&& std::getline(rest, process.name);
  if (field == "State") rest >> process.state;
  if (field == "Tgid") rest >> process.pid;
  if (field == "PPid") rest >> process.parent;
  if (field == "SigCgt") rest >> std::hex >> process.caught;
  if (field == "Uid") {
    uid_t real = 0;
    rest >> real >> process.user;
  }
  if (field == "NStgid") {  // from the outermost namespace to the innermost
    for (pid_t pid = 0; rest >> pid;) process.inner_pid = pid;
  }
}

std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const auto name = entry.path().filename().string();
    pid_t pid = 0;
    const auto* const end = name.data() + name.size();
    if (const auto result = std::from_chars(name.data(), end, pid); result.ec == std::errc() && result.ptr == end) {
      pids.push_back(pid);
    }
  }
  return pids;
}

}  // namespace

ProcessKey Process::key() const {
  auto name_space = namespace_of(std::to_string(pid), "pid");
  if (name_space == 0) name_space = namespace_of("self", "pid");  // it is not shown to everybody
  return {name_space, inner_pid};
}

std::optional<Process> find_process(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  Process process;
  for (std::string line; std::getline(status, line);) take_line(line, process);
  if (process.pid == 0) return std::nullopt;
  if (process.inner_pid == 0) process.inner_pid = process.pid;  // a system without pid namespaces
  return process;
}

std::vector<pid_t> own_children() {
  const auto self = std::to_string(::getpid());
  std::ifstream file("/proc/self/task/" + self + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

std::vector<Process> descendants_of(pid_t pid) {
  std::multimap<pid_t, Process> children;
  for (const pid_t one : all_pids()) {
    if (auto process = find_process(one)) children.emplace(process->parent, std::move(*process));
  }
  std::vector<Process> family;
  std::vector<pid_t> parents{pid};
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const auto [first, last] = children.equal_range(parents[i]);
    for (auto child = first; child != last; ++child) {
      if (child->second.pid == pid) continue;  // a number that was given away again while we looked
      parents.push_back(child->second.pid);
      family.push_back(child->second);
    }
  }
  return family;
}

}  // namespace ddp::launch
