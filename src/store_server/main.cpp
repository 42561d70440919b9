/// ddprun_store: serves the store of a job whose rank 0 does not take over ddprun's socket. A program of its own, so
/// that ddprun needs no LibTorch.

#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <string_view>

#include "comm/store_server.hpp"
#include "ddp/error.hpp"

namespace {

constexpr int kBadUsage = 2;

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end || number <= STDERR_FILENO) return std::nullopt;
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  const auto listening = argc == 2 ? number_in(argv[1]) : std::nullopt;
  if (!listening) {
    std::cerr << "ddprun_store: usage: ddprun_store FD, the number of a socket that listens, from 3 on; ddprun starts "
                 "this program itself\n";
    return kBadUsage;
  }
  std::signal(SIGPIPE, SIG_IGN);  // a client may die in the middle of an answer
  try {
    ddp::comm::serve_store(*listening, STDIN_FILENO);
    return EXIT_SUCCESS;
  } catch (const ddp::ConfigError& error) {
    std::cerr << error.what() << "\n";
    return kBadUsage;
  } catch (const std::exception& error) {
    std::cerr << "ddprun_store: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
