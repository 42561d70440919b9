#include "launch/relay.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <memory>
#include <system_error>

#include "ddp/error.hpp"
#include "launch/console.hpp"
#include "launch/line_splitter.hpp"
#include "launch/message.hpp"
#include "launch/pseudo_terminal.hpp"
#include "start/descriptors.hpp"

namespace ddp::launch {
namespace {

[[noreturn]] void fail(const char* what) {
  if (errno == EMFILE || errno == ENFILE) {
    throw ConfigError({}, "ddprun", "this process may not open as many files as so many ranks need", "raise ulimit -n");
  }
  throw std::system_error(errno, std::generic_category(), what);
}

Channel make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Channel make_channel(int stream) { return ::isatty(stream) == 1 ? make_pseudo_terminal(stream) : make_pipe(); }

/// The last lines that went by.
class Tail {
 public:
  void add(std::string_view line) {
    if (line.size() > Relay::kTailBytes) line = line.substr(line.size() - Relay::kTailBytes);
    lines_.emplace_back(line);
    bytes_ += line.size();
    while (lines_.size() > Relay::kTailLines || bytes_ > Relay::kTailBytes) {
      bytes_ -= lines_.front().size();
      lines_.pop_front();
    }
  }
  std::string text() const {
    std::string all;
    for (const auto& line : lines_) all.append(line) += '\n';
    return all;
  }

 private:
  std::deque<std::string> lines_;
  std::size_t bytes_ = 0;
};

/// One stream of one rank, or the launcher's own lines.
class Source {
 public:
  Source(Descriptor from, Descriptor file, const Targets& targets, int stream, int rank, Console& console)
      : from_(std::move(from)),
        file_(std::move(file)),
        name_(targets.file),
        wants_lines_(targets.to_console || stream == STDERR_FILENO),
        splitter_(targets.to_console && ::isatty(stream) == 1,
                  [=, this, &console](std::string_view line, bool update) {
                    if (targets.to_console) console.add(stream, rank, line, update);
                    if (stream == STDERR_FILENO && !update) tail_.add(line);
                  }),
        console_(console) {}

  int descriptor() const { return from_.get(); }
  void add_descriptors(std::vector<int>& all) const { all.insert(all.end(), {from_.get(), file_.get()}); }
  /// Takes what is there. False at the end.
  bool take() {
    char buffer[65536];
    const ssize_t size = ::read(from_.get(), buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) return true;
    if (size <= 0) return close();
    const std::string_view bytes(buffer, static_cast<std::size_t>(size));
    keep(bytes);
    if (wants_lines_) splitter_.take(bytes);
    return true;
  }
  bool close() {
    splitter_.finish();
    from_.close();
    return false;
  }
  std::string tail() const { return tail_.text(); }

 private:
  void keep(std::string_view bytes) {
    while (!bytes.empty() && file_.get() >= 0) {
      const ssize_t size = ::write(file_.get(), bytes.data(), bytes.size());
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) {
        console_.add(STDERR_FILENO, -1, "ddprun: cannot write on to " + name_ + ": " + std::strerror(errno), false);
        file_.close();
        return;
      }
      bytes.remove_prefix(static_cast<std::size_t>(size));
    }
  }

  Descriptor from_, file_;
  std::string name_;
  bool wants_lines_;
  Tail tail_;
  LineSplitter splitter_;
  Console& console_;
};

Descriptor open_file(const std::string& path) {
  if (path.empty()) return {};
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    throw ConfigError({}, "ddprun", "cannot write " + path + ": " + std::strerror(errno), "choose another --log-dir");
  }
  return file;
}

struct Sources {
  std::vector<std::unique_ptr<Source>> all;  // of each local rank output, then error; the launcher's last
  Descriptor control;
};

/// Until every source has ended, or the launcher has said that nothing comes any more and nothing is there.
void carry(Sources& sources, Console& console) {
  constexpr int kForever = -1;
  bool is_finishing = false;
  for (;;) {
    std::vector<pollfd> ready;
    std::vector<Source*> whose;
    for (const auto& source : sources.all) {
      if (source->descriptor() < 0) continue;
      ready.push_back({source->descriptor(), POLLIN, 0});
      whose.push_back(source.get());
    }
    if (ready.empty()) return;
    if (!is_finishing) ready.push_back({sources.control.get(), POLLIN, 0});
    if (::poll(ready.data(), ready.size(), is_finishing ? 0 : kForever) < 0) continue;
    bool took = false;
    for (std::size_t i = 0; i < whose.size(); ++i) {
      if (ready[i].revents == 0) continue;
      whose[i]->take();
      took = true;
    }
    console.flush();
    if (is_finishing && !took) return;
    if (!is_finishing && ready.back().revents != 0) is_finishing = true;
  }
}

void tell_tails(const Sources& sources, int to) {
  for (std::size_t i = 0; 2 * i + 1 < sources.all.size(); ++i) {
    const auto text = sources.all[2 * i + 1]->tail();
    if (text.empty()) continue;
    const auto bytes = encoded({"tail", {std::to_string(i), text}});
    for (std::string_view left = bytes; !left.empty();) {
      const ssize_t size = ::write(to, left.data(), left.size());
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) return;
      left.remove_prefix(static_cast<std::size_t>(size));
    }
  }
}

/// Neither Ctrl-C nor a kill of the launcher's group ends it, for the ranks still speak then; and it holds nothing open
/// of which others wait for the end.
void stand_aside(const Sources& sources, int tails) {
  ::setsid();
  std::vector<int> kept{tails, sources.control.get()};
  for (const auto& source : sources.all) source->add_descriptors(kept);
  start::close_others(kept);
  ::prctl(PR_SET_NAME, "ddprun-relay");
  sigset_t every;
  sigfillset(&every);
  ::sigprocmask(SIG_BLOCK, &every, nullptr);
}

}  // namespace

Relay::Relay(const std::vector<RankTargets>& plan, int first_rank, int world_size) {
  Console console(world_size);
  Sources sources;
  const auto add = [&](const Targets& targets, int stream, int rank) {
    auto channel = targets.to_console ? make_channel(stream) : make_pipe();
    sources.all.push_back(
        std::make_unique<Source>(std::move(channel.from), open_file(targets.file), targets, stream, rank, console));
    return std::move(channel.to);
  };
  for (int local = 0; const auto& targets : plan) {
    auto output = add(targets.output, STDOUT_FILENO, first_rank + local);
    ends_.push_back({std::move(output), add(targets.error, STDERR_FILENO, first_rank + local)});
    ++local;
  }
  auto own = make_pipe();
  sources.all.push_back(
      std::make_unique<Source>(std::move(own.from), Descriptor(), Targets(), STDERR_FILENO, -1, console));
  own_lines_ = std::move(own.to);
  ::fcntl(own_lines_.get(), F_SETFL, O_NONBLOCK);
  auto control = make_pipe();
  auto tails = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) fail("cannot start the process that carries the ranks' output");
  if (pid_ == 0) {
    sources.control = std::move(control.from);
    stand_aside(sources, tails.to.get());
    carry(sources, console);
    for (const auto& source : sources.all) source->close();
    console.finish();
    tell_tails(sources, tails.to.get());
    ::_exit(0);
  }
  process_ = std::make_unique<start::Child>(pid_);
  control_ = std::move(control.to);
  tails_ = std::move(tails.from);
}

Relay::~Relay() { give_up(); }

Relay::RankEnds Relay::take_ends(int local_rank) { return std::move(ends_[static_cast<std::size_t>(local_rank)]); }

void Relay::finish() {
  ends_.clear();
  own_lines_.close();
  control_.close();
}

bool Relay::is_over() {
  char buffer[4096];
  pollfd ready{tails_.get(), POLLIN, 0};
  while (tails_.get() >= 0 && ::poll(&ready, 1, 0) == 1) {
    const ssize_t size = ::read(tails_.get(), buffer, sizeof buffer);
    if (size > 0) {
      heard_.append(buffer, static_cast<std::size_t>(size));
    } else if (size == 0 || errno != EINTR) {
      tails_.close();
    }
  }
  if (tails_.get() >= 0) return false;
  while (const auto tail = take_message(heard_)) {
    if (tail->fields.size() == 2) tails_by_rank_[std::stoi(tail->fields[0])] = tail->fields[1];
  }
  return true;
}

void Relay::give_up() {
  if (tails_.get() < 0) return;
  process_->send(SIGKILL);
  tails_.close();
}

}  // namespace ddp::launch
