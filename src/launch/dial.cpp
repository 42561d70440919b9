#include "launch/dial.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace ddp::launch {
namespace {

constexpr int kAnswerMilliseconds = 5000;  // beyond a lost packet's repetition

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// None, with the reason in `why`.
Addresses resolve(const std::string& host, const char* port, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), port, &hints, &list); code != 0) why = ::gai_strerror(code);
  return {list, [](addrinfo* all) {
            if (all != nullptr) ::freeaddrinfo(all);
          }};
}

bool call_from(int socket, const std::string& from, std::string& why) {
  if (from.empty()) return true;
  const auto own = resolve(from, nullptr, why);
  if (!own) return false;
  if (::bind(socket, own->ai_addr, own->ai_addrlen) == 0) return true;
  why = "cannot call from " + from + ": " + std::strerror(errno);
  return false;
}

int finish_connecting(int socket, int interrupt) {
  pollfd wanted[2]{{socket, POLLOUT, 0}, {interrupt, POLLIN, 0}};
  if (::poll(wanted, 2, kAnswerMilliseconds) < 1 || wanted[0].revents == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

Call dial(const std::string& host, std::uint16_t port, const std::string& from, int interrupt) {
  Call call;
  const auto all = resolve(host, std::to_string(port).c_str(), call.why);
  for (const auto* one = all.get(); one != nullptr; one = one->ai_next) {
    Descriptor socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0 || !call_from(socket.get(), from, call.why)) continue;
    int error = ::connect(socket.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = finish_connecting(socket.get(), interrupt);
    if (error == 0) {
      call.socket = std::move(socket);
      return call;
    }
    call.why = std::strerror(error);
  }
  return call;
}

bool is_own_address(const std::string& host) {
  std::string why;
  const auto all = resolve(host, nullptr, why);
  for (const auto* one = all.get(); one != nullptr; one = one->ai_next) {
    const Descriptor socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.get() >= 0 && ::bind(socket.get(), one->ai_addr, one->ai_addrlen) == 0) return true;
  }
  return !all;
}

std::optional<Caller> accept_from(int listening) {
  pollfd ready{listening, POLLIN, 0};
  if (::poll(&ready, 1, 0) != 1) return std::nullopt;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  Descriptor socket(::accept4(listening, raw, &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0) return std::nullopt;
  char name[NI_MAXHOST] = {};
  ::getnameinfo(raw, size, name, sizeof name, nullptr, 0, NI_NUMERICHOST);
  return Caller{std::move(socket), name};
}

}  // namespace ddp::launch
