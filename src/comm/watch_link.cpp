#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <iterator>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/blocked_signals.hpp"
#include "comm/peer_watch.hpp"
#include "comm/watch_frame.hpp"
#include "comm/watch_join.hpp"
#include "comm/watch_mismatch.hpp"
#include "comm/watch_socket.hpp"

namespace ddp::comm {

using namespace watch;

namespace {

constexpr std::chrono::milliseconds kHandOverLimit{1000};  // report() and leave(): a dying rank must die

/// One call of ask_all().
struct Ask {
  std::uint32_t id;
  std::uint32_t limit_ms;
  Question question;
  bool sent = false;
  bool refused = false;
  std::size_t open;  ///< ranks that have not answered
  std::vector<std::string> lines;
  std::vector<bool> answered;
};

}  // namespace

/// What other threads want goes through atomics and `wake`; the link's own thread does it.
struct WatchLink::Impl {
  Impl(const Options& options, WatchEvents e)
      : events(std::move(e)), rank(options.rank), world_size(options.world_size), socket(join_hub(options, frames)) {
    const BlockedSignals blocked;
    thread = std::thread([this] { run(); });
  }

  ~Impl() {
    stop = true;
    wake.ring();
    thread.join();
  }

  void run() noexcept {
    own_thread = std::this_thread::get_id();
    pthread_setname_np(pthread_self(), "ddp-watch-link");
    read_frames();  // what came with the welcome
    while (!stop) {
      take_requests();
      flush();
      pollfd entries[] = {{wake.fd(), POLLIN, 0}, {connected ? socket.get() : -1, POLLIN, 0}};
      if (!out.empty()) entries[1].events |= POLLOUT;
      poll_until(entries, Clock::time_point::max());
      if (entries[0].revents != 0) wake.clear();
      if ((entries[1].revents & ~POLLOUT) != 0) receive();
    }
    take_requests();
    flush();
    disconnect();
  }

  // Requests of other threads -> frames.

  void take_requests() {
    take_last_words();
    take_asks();
    take_waits();
  }

  void take_last_words() {
    if (report_ready.load(std::memory_order_acquire) && !std::exchange(report_sent, true)) {
      BodyWriter body;
      body.u8(static_cast<std::uint8_t>(report_kind)).text({report_text.data(), report_size});
      queue(FrameType::report, body.bytes());
    }
    if (leaving && !std::exchange(goodbye_sent, true)) queue(FrameType::goodbye, BodyWriter().u64(last_call).bytes());
  }

  void take_asks() {
    std::vector<std::pair<std::uint32_t, Question>> fresh;
    {
      const std::lock_guard lock(asks_mutex);
      for (Ask& ask : asks) {
        if (std::exchange(ask.sent, true)) continue;
        fresh.emplace_back(ask.id, ask.question);
        const auto& [kind, call, turn] = ask.question;
        BodyWriter body;
        body.u32(ask.id).u32(ask.limit_ms).u8(static_cast<std::uint8_t>(kind)).u64(call).u32(turn);
        queue(FrameType::ask, body.bytes());
      }
    }
    if (!fresh.empty()) flush();  // the others answer meanwhile
    for (const auto& [id, question] : fresh) take_answer(id, rank, own_answer(question.kind, question.call));
    if (!connected) end_asks();
  }

  void take_waits() {
    std::optional<std::string> body;
    {
      const std::lock_guard lock(waits_mutex);
      body.swap(waits);
    }
    if (body) queue(FrameType::waiting, *body);
  }

  void queue(FrameType type, std::string_view body) {
    if (connected) out += encode_frame(type, body);
  }

  void flush() {
    while (!out.empty()) {
      const Transfer transfer = send_some(socket, out);
      if (transfer.again) return;
      // After a failed send the hub's last words may still wait to be read: receive() finds the end.
      out.erase(0, transfer.over ? std::string::npos : transfer.bytes);
    }
  }

  // Frames of the hub -> events.

  void receive() {
    std::array<char, 16 * 1024> buffer;
    const Transfer transfer = receive_some(socket, buffer);
    if (transfer.again) return;
    if (transfer.over) return lose_hub(transfer.error);
    frames.feed(std::string_view(buffer.data(), transfer.bytes));
    read_frames();
  }

  void read_frames() {
    while (connected) {
      const auto frame = frames.next();
      if (!frame) break;
      take(*frame);
    }
    if (connected && frames.broken()) lose_hub(EBADMSG);
  }

  void take(const Frame& frame) {
    BodyReader body(frame.body);
    switch (frame.type) {
      case FrameType::failure: {
        const int failed = static_cast<int>(body.u32());
        const auto kind = static_cast<Failure::Kind>(body.u8());
        return fail({failed, kind, body.rest()});
      }
      case FrameType::left: {
        const int who = static_cast<int>(body.u32());
        if (events.on_left) events.on_left(who, body.u64());
        return;
      }
      case FrameType::question: {
        const auto kind = body.u8();
        const auto call = body.u64();
        const auto text = own_answer(static_cast<Question::Kind>(kind), call);
        return queue(FrameType::status, BodyWriter().u8(kind).u64(call).text(text).bytes());
      }
      case FrameType::answer: {
        const std::uint32_t id = body.u32();
        const int who = static_cast<int>(body.u32());
        return take_answer(id, who, body.rest());
      }
      case FrameType::refused:
        return take_refusal(body.u32());
      case FrameType::received:
        return (static_cast<FrameType>(body.u8()) == FrameType::report ? reported : farewell).ring();
      case FrameType::closing:
        return disconnect();
      default:
        return;  // a frame that only a link sends: harmless
    }
  }

  void fail(const Failure& failure) {
    if (std::exchange(failed_before, true) || leaving) return;
    if (events.on_failure) events.on_failure(failure);
  }

  void lose_hub(int error) {
    disconnect();
    const bool silent = error != 0 && error != ECONNRESET && error != EPIPE;
    fail({0, Failure::Kind::lost,
          silent ? "its host does not answer (" + error_text(error) + ")"
                 : "its connection closed without a goodbye; the process ended or was killed"});
  }

  void disconnect() {
    connected = false;
    socket.close();
    out.clear();
    reported.ring();
    farewell.ring();
    end_asks();
  }

  std::string own_answer(Question::Kind kind, std::uint64_t call) {
    if (kind == Question::Kind::report) return events.report ? bounded_text(events.report(call), kMaxReport) : "";
    return events.status ? bounded_text(events.status(), kMaxStatus) : "";
  }

  void take_answer(std::uint32_t id, int about, std::string_view line) {
    const std::lock_guard lock(asks_mutex);
    for (Ask& ask : asks) {
      const auto index = static_cast<std::size_t>(about);
      if (ask.id != id || index >= ask.lines.size() || ask.answered[index]) continue;
      ask.answered[index] = true;
      ask.lines[index] = line;
      if (--ask.open == 0) asks_changed.notify_all();
    }
  }

  void take_refusal(std::uint32_t id) {
    const std::lock_guard lock(asks_mutex);
    for (Ask& ask : asks) {
      if (ask.id != id) continue;
      ask.refused = true;
      ask.open = 0;
    }
    asks_changed.notify_all();
  }

  /// Nobody will answer any more.
  void end_asks() {
    const std::lock_guard lock(asks_mutex);
    for (Ask& ask : asks) {
      if (ask.sent) ask.open = 0;
    }
    asks_changed.notify_all();
  }

  /// For report() on the link's own thread, from a terminate handler: run() will not come back.
  void hand_over(Clock::time_point deadline) {
    take_last_words();
    for (flush(); !out.empty() && Clock::now() < deadline; flush()) {
      pollfd entry{socket.get(), POLLOUT, 0};
      poll_until({&entry, 1}, deadline);
    }
  }

  bool on_own_thread() const { return std::this_thread::get_id() == own_thread; }

  const WatchEvents events;
  const int rank;
  const int world_size;
  FrameReader frames;  // before the socket: join_hub() fills it
  Descriptor socket;
  std::string out;
  bool connected = true;
  bool failed_before = false;
  bool report_sent = false;
  bool goodbye_sent = false;

  Wake wake;
  Wake reported;  ///< rung for good once the report has arrived, or never will
  Wake farewell;  ///< the same for the goodbye
  std::atomic<bool> stop{false};

  std::atomic<bool> report_taken{false};
  std::atomic<bool> report_ready{false};
  Failure::Kind report_kind = Failure::Kind::raised;
  std::array<char, kMaxText> report_text;
  std::size_t report_size = 0;

  std::atomic<bool> leave_taken{false};
  std::atomic<bool> leaving{false};
  std::uint64_t last_call = 0;

  std::mutex asks_mutex;
  std::condition_variable asks_changed;
  std::uint32_t next_ask = 0;
  std::list<Ask> asks;

  std::mutex waits_mutex;
  std::optional<std::string> waits;  ///< not sent yet

  std::atomic<std::thread::id> own_thread{};
  std::thread thread;
};

WatchLink::WatchLink(const Options& options, WatchEvents events)
    : impl_(std::make_unique<Impl>(options, std::move(events))) {}

WatchLink::~WatchLink() = default;

void WatchLink::report(Failure::Kind kind, std::string_view text) noexcept {
  Impl& link = *impl_;
  if (!link.report_taken.exchange(true)) {
    link.report_kind = kind;
    link.report_size = copy_bounded(text, link.report_text);
    link.report_ready.store(true, std::memory_order_release);
    link.wake.ring();
  }
  const auto deadline = Clock::now() + kHandOverLimit;
  if (link.on_own_thread()) return link.hand_over(deadline);
  static_cast<void>(link.reported.wait(deadline));
}

std::optional<std::vector<std::string>> WatchLink::ask_all(const Question& question, std::chrono::milliseconds limit,
                                                           const std::vector<bool>& held) {
  Impl& link = *impl_;
  if (link.on_own_thread()) throw std::logic_error("WatchLink::ask_all() was called from a callback");
  const auto ranks = static_cast<std::size_t>(link.world_size);
  const auto wire_limit = std::clamp<std::int64_t>(limit.count(), 0, 3600 * 1000);
  std::unique_lock lock(link.asks_mutex);
  link.asks.push_back({.id = ++link.next_ask,
                       .limit_ms = static_cast<std::uint32_t>(wire_limit),
                       .question = question,
                       .open = ranks - static_cast<std::size_t>(std::ranges::count(held, true)),
                       .lines = std::vector<std::string>(ranks),
                       .answered = held});
  link.asks.back().answered.resize(ranks);
  const auto ask = std::prev(link.asks.end());
  link.wake.ring();
  link.asks_changed.wait_for(lock, limit, [&] { return ask->open == 0; });
  std::optional<std::vector<std::string>> lines;
  if (!ask->refused) lines = std::move(ask->lines);
  link.asks.erase(ask);
  return lines;
}

void WatchLink::waits_in(const std::vector<MadeCall>& calls) {
  {
    const std::lock_guard lock(impl_->waits_mutex);
    impl_->waits = encode_calls(calls);
  }
  impl_->wake.ring();
}

void WatchLink::leave(std::uint64_t last_call) noexcept {
  Impl& link = *impl_;
  if (!link.leave_taken.exchange(true)) {
    link.last_call = last_call;
    link.leaving = true;
    link.wake.ring();
  }
  if (link.on_own_thread()) return link.hand_over(Clock::now() + kHandOverLimit);
  static_cast<void>(link.farewell.wait(Clock::now() + kHandOverLimit));
}

}  // namespace ddp::comm
