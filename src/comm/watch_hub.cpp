#include <pthread.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/blocked_signals.hpp"
#include "comm/peer_watch.hpp"
#include "comm/watch_mismatch.hpp"
#include "comm/watch_questions.hpp"
#include "comm/watch_server.hpp"
#include "comm/watch_verdict.hpp"

namespace ddp::comm {

using namespace watch;

namespace {

// The links close as soon as they read the hub's last word; only a stopped process makes it wait.
constexpr std::chrono::milliseconds kClosingLimit{500};

const WatchHub::Options& checked(const WatchHub::Options& options) {
  if (options.world_size < 1) throw std::invalid_argument("WatchHub: world_size < 1");
  if (options.token.size() > kMaxToken) throw std::invalid_argument("WatchHub: the token is longer than 512 bytes");
  if (!options.names.empty() && options.names.size() != static_cast<std::size_t>(options.world_size))
    throw std::invalid_argument("WatchHub: not as many names as ranks");
  return options;
}

std::vector<int> names_of(const WatchHub::Options& options) {
  if (!options.names.empty()) return options.names;
  std::vector<int> names(static_cast<std::size_t>(options.world_size));
  std::iota(names.begin(), names.end(), 0);
  return names;
}

std::string encode_failure(const Failure& failure) {
  BodyWriter body;
  body.u32(static_cast<std::uint32_t>(failure.rank)).u8(static_cast<std::uint8_t>(failure.kind));
  return encode_frame(FrameType::failure, body.text(failure.text).bytes());
}

std::string encode_left(int rank, std::uint64_t last_call) {
  return encode_frame(FrameType::left, BodyWriter().u32(static_cast<std::uint32_t>(rank)).u64(last_call).bytes());
}

std::string encode_received(FrameType type) {
  return encode_frame(FrameType::received, BodyWriter().u8(static_cast<std::uint8_t>(type)).bytes());
}

}  // namespace

/// The hub's knowledge of the ranks. All but the constructor, the destructor and wait_all_left()
/// runs on its own thread.
struct WatchHub::Impl final : ServerEvents {
  enum class State { absent, here, left, lost };
  struct Member {
    State state = State::absent;
    std::string name;
    std::uint64_t last_call = 0;
    bool awaits_verdict = false;  ///< its report is acknowledged once the others are told
  };

  explicit Impl(const Options& o)
      : options(checked(o)),
        server({.world_size = o.world_size, .loopback_only = o.loopback_only, .hello_limit = o.hello_limit}, *this),
        verdict(o.echo_wait),
        waits(names_of(o)),
        members(static_cast<std::size_t>(o.world_size)) {
    const BlockedSignals blocked;
    thread = std::thread([this] { run(); });
  }

  void run() noexcept {
    pthread_setname_np(pthread_self(), "ddp-watch-hub");
    while (!stop) {
      server.step(cause ? Clock::time_point::max() : verdict.due().value_or(Clock::time_point::max()));
      announce_cause(Clock::now());
      for (auto& open : questions) open.expire(Clock::now());
    }
    closing = true;
    announce_cause(Clock::time_point::max());
    server.stop_listening();
    server.send_to_all(encode_frame(FrameType::closing));
    server.flush();
    const auto deadline = Clock::now() + kClosingLimit;
    while (server.has_connections() && Clock::now() < deadline) server.step(deadline);
  }

  std::string admit(const Hello& hello) override {
    if (hello.token != options.token) return "its token is that of another job";
    const std::string rank = "rank " + std::to_string(hello.rank);
    if (hello.world_size != static_cast<std::uint32_t>(options.world_size)) {
      return rank + " (" + hello.name + ") says that the world has " + std::to_string(hello.world_size) +
             " ranks, rank 0 says " + std::to_string(options.world_size);
    }
    if (hello.rank >= hello.world_size) return rank + " is none of a world of " + std::to_string(options.world_size);
    Member& member = members[hello.rank];
    if (member.state != State::absent) {
      return rank + " came twice: first " + member.name + ", now " + hello.name +
             (member.state == State::here ? "" : " (the first one has gone)");
    }
    member.name = hello.name;
    return {};
  }

  void joined(int rank) override {
    of(rank).state = State::here;
    for (int other = 0; other < options.world_size; ++other) {
      if (of(other).state == State::left) server.send(rank, encode_left(other, of(other).last_call));
    }
    if (cause) server.send(rank, encode_failure(*cause));
  }

  void received(int rank, const Frame& frame) override {
    BodyReader body(frame.body);
    switch (frame.type) {
      case FrameType::report:
        return take_report(rank, body);
      case FrameType::goodbye:
        return take_goodbye(rank, body.u64());
      case FrameType::ask:
        return take_ask(rank, body);
      case FrameType::status: {
        const auto kind = body.u8();
        const auto call = body.u64();
        if (kind < questions.size()) send_answers(questions[kind].settle(rank, call), rank, body.rest());
        return;
      }
      case FrameType::waiting:
        return take_waits(rank, frame.body);
      default:
        return;  // a frame that only a hub sends: harmless
    }
  }

  void gone(int rank, const std::string& reason) override {
    for (auto& open : questions) send_answers(open.settle(rank), rank, {});
    Member& member = of(rank);
    if (closing || member.state != State::here) return;
    member.state = State::lost;
    waits.set(rank, {});
    count_departure();
    verdict.add({rank, Failure::Kind::lost, reason}, Clock::now());
    announce_cause(Clock::now());
  }

  void take_report(int rank, BodyReader& body) {
    const std::uint8_t kind = body.u8();
    if (!body.ok() || kind > static_cast<std::uint8_t>(Failure::Kind::echo)) return;
    verdict.add({rank, static_cast<Failure::Kind>(kind), bounded_text(body.rest(), kMaxText)}, Clock::now());
    of(rank).awaits_verdict = true;
    announce_cause(Clock::now());
  }

  void take_waits(int rank, std::string_view body) {
    auto calls = decode_calls(body);
    if (!calls || of(rank).state != State::here) return;
    waits.set(rank, *std::move(calls));
    if (auto text = waits.mismatch()) {
      verdict.add({0, Failure::Kind::mismatch, *std::move(text)}, Clock::now());
      announce_cause(Clock::now());
    }
  }

  void take_goodbye(int rank, std::uint64_t last_call) {
    Member& member = of(rank);
    server.send(rank, encode_received(FrameType::goodbye));
    if (member.state != State::here) return;
    member.state = State::left;
    member.last_call = last_call;
    waits.set(rank, {});
    count_departure();
    const std::string left = encode_left(rank, last_call);
    for (int other = 0; other < options.world_size; ++other) {
      if (other != rank) server.send(other, left);
    }
  }

  /// Tells everybody, once; then those who wait that they have been heard.
  void announce_cause(Clock::time_point now) {
    if (!cause) {
      cause = verdict.cause(now);
      if (!cause) return;
      server.send_to_all(encode_failure(*cause));
      server.flush();
    }
    for (int rank = 0; rank < options.world_size; ++rank) {
      if (!std::exchange(of(rank).awaits_verdict, false)) continue;
      server.send(rank, encode_received(FrameType::report));
    }
    server.flush();
  }

  void take_ask(int rank, BodyReader& body) {
    const WatchQuestions::Asker asker{rank, body.u32()};
    const auto deadline = Clock::now() + std::chrono::milliseconds(body.u32());
    const auto kind = body.u8();
    if (!body.ok() || kind >= questions.size()) return;
    const auto call = body.u64();
    Question question{static_cast<Question::Kind>(kind), call, body.u32()};
    if (turns.take(rank, question, Clock::now())) {
      if (question.kind == Question::Kind::status) question.call = 0;  // the same line for all
      return ask(asker, question, deadline);
    }
    server.send(rank, encode_frame(FrameType::refused, BodyWriter().u32(asker.id).bytes()));
  }

  void ask(WatchQuestions::Asker asker, const Question& question, Clock::time_point deadline) {
    const auto kind = static_cast<std::uint8_t>(question.kind);
    for (int about = 0; about < options.world_size; ++about) {
      if (about == asker.rank) continue;  // it answers itself
      if (of(about).state != State::here) {
        send_answer(asker, about, {});
      } else if (questions[kind].add(asker, about, question.call, deadline)) {
        server.send(about, encode_frame(FrameType::question, BodyWriter().u8(kind).u64(question.call).bytes()));
      }
    }
  }

  void send_answers(const std::vector<WatchQuestions::Asker>& askers, int about, std::string_view text) {
    for (const auto& asker : askers) send_answer(asker, about, bounded_text(text, kMaxReport));
  }

  void send_answer(WatchQuestions::Asker asker, int about, const std::string& text) {
    BodyWriter body;
    body.u32(asker.id).u32(static_cast<std::uint32_t>(about)).text(text);
    server.send(asker.rank, encode_frame(FrameType::answer, body.bytes()));
  }

  void count_departure() {
    const std::lock_guard lock(departed_mutex);
    ++departed;
    departed_changed.notify_all();
  }

  Member& of(int rank) { return members[static_cast<std::size_t>(rank)]; }

  const Options options;
  WatchServer server;
  Verdict verdict;
  std::array<WatchQuestions, 2> questions;  // of each kind
  WatchTurns turns;
  Waits waits;
  std::vector<Member> members;
  std::optional<Failure> cause;
  bool closing = false;
  std::atomic<bool> stop{false};
  std::mutex departed_mutex;
  std::condition_variable departed_changed;
  int departed = 0;
  std::thread thread;
};

WatchHub::WatchHub(const Options& options) : impl_(std::make_unique<Impl>(options)) {}

WatchHub::~WatchHub() {
  impl_->stop = true;
  impl_->server.wake();
  impl_->thread.join();
}

std::uint16_t WatchHub::port() const { return impl_->server.port(); }

bool WatchHub::wait_all_left(std::chrono::milliseconds limit) {
  std::unique_lock lock(impl_->departed_mutex);
  return impl_->departed_changed.wait_for(lock, limit, [this] { return impl_->departed == impl_->options.world_size; });
}

}  // namespace ddp::comm
