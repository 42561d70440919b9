#include "base/inspection_server.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <system_error>
#include <utility>

#include "base/blocked_signals.hpp"
#include "base/inspection_wire.hpp"

namespace ddp {
namespace {

using namespace inspection;

constexpr std::chrono::seconds kPatience{1};  // with a question, and again with an answer; both take milliseconds
constexpr std::chrono::milliseconds kShortage{100};  // pause where there is no descriptor for a client
constexpr int kBacklog = 16;                         // more than people ask at once

// Its owner is the one Listener that is open. Global, for a handler of fork() is given nothing.
std::atomic<int> listening{-1};

void close_listening() {
  const int fd = listening.exchange(-1);
  if (fd >= 0) ::close(fd);
}

void close_in_children() {
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, close_listening);
}

[[noreturn]] void raise(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

bool may_ask(int client) {
  const auto user = user_of(client);
  return user && (*user == ::geteuid() || *user == 0);
}

}  // namespace

void InspectionServer::Listener::close() noexcept {
  int own = std::exchange(fd_, -1);
  if (own >= 0 && listening.compare_exchange_strong(own, -1)) ::close(own);
}

void InspectionServer::Listener::open(const ProcessKey& name) {
  close_in_children();
  Descriptor socket = stream_socket();
  int none = -1;
  if (!listening.compare_exchange_strong(none, socket.get())) {
    throw std::system_error(EADDRINUSE, std::generic_category(), "this process");
  }
  fd_ = socket.release();
  const auto address = address_of(name);
  if (::bind(fd_, address.get(), address.length) != 0) raise("bind");
  if (::listen(fd_, kBacklog) != 0) raise("listen");
}

InspectionServer::InspectionServer(Answer answer) noexcept : answer_(std::move(answer)) {
  try {
    listener_.open(own_process_key());
    thread_ = std::make_unique<ServiceThread>("ddp-inspect", [this](int stop) { run(stop); });
  } catch (const std::exception& error) {
    trouble_ = error.what();
    listener_.close();  // or who asks would wait in vain
  }
}

void InspectionServer::run(int stop) const {
  while (wait_for(listener_.get(), POLLIN, Clock::time_point::max(), stop)) {
    try {
      answer_next(stop);
    } catch (const std::exception&) {
      continue;  // no memory for the answer: who asks hears nothing
    }
  }
}

void InspectionServer::answer_next(int stop) const {
  const Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (client.get() >= 0) {
    if (may_ask(client.get())) answer(client.get(), stop);
  } else if (errno != EAGAIN && errno != EINTR) {
    wait_for(-1, 0, Clock::now() + kShortage, stop);
  }
}

void InspectionServer::answer(int client, int stop) const {
  Conversation conversation(client, stop);
  std::string question;
  if (conversation.receive_line(question, Clock::now() + kPatience) != Transfer::done) return;
  conversation.send(reply_to(question), Clock::now() + kPatience);
}

std::string InspectionServer::reply_to(const std::string& question) const {
  const auto line = [](std::string_view begin, std::string_view rest) {
    return std::string(begin).append(rest).append("\n");
  };
  if (!question.starts_with(kQuestion)) return line(kError, "no question of this version's ddprun --inspect");
  const auto whom = std::string_view(question).substr(kQuestion.size());
  const auto about = whom == kAnyJob ? std::nullopt : ProcessKey::parsed(whom);
  if (whom != kAnyJob && !about) return line(kError, "no process's key");
  try {
    const auto text = answer_(about);
    if (text.empty()) return line(kOtherJob, {});
    return line(kAnswer, std::to_string(text.size())) + text;
  } catch (const std::exception& error) {
    return line(kError, error.what());
  }
}

}  // namespace ddp
