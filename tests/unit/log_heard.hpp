#pragma once
/// log_heard.hpp: what processes that log write to standard error. Knows no torch.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddp::testing {

/// What `processes` children write to standard error while each runs `speak`. The variables are read once a
/// process, so only children ever log here.
inline std::string heard_from(int processes, const std::function<void(int index)>& speak) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe");
  std::vector<pid_t> children;
  for (int i = 0; i < processes; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      dup2(ends[1], STDERR_FILENO);
      ::close(ends[0]);
      try {
        speak(i);
      } catch (const std::exception& error) {  // else the child would go on with the tests
        dprintf(STDERR_FILENO, "%s\n", error.what());
        _exit(1);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[65536];
  for (ssize_t size; (size = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(size));
  ::close(ends[0]);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "a child that logged ended badly";
  }
  return text;
}

inline std::string heard(const std::function<void()>& speak, int processes = 1) {
  return heard_from(processes, [&](int) { speak(); });
}

using Lines = std::vector<std::string>;

inline Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The lines without their time.
inline Lines timeless(const std::string& text) {
  auto lines = lines_of(text);
  for (auto& line : lines) line.erase(0, line.find(' ') + 1);
  return lines;
}

inline Lines heard_lines(const std::function<void()>& speak) { return timeless(heard(speak)); }

}  // namespace ddp::testing
