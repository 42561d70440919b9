#include "launch/meeting.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <stdexcept>

#include "ddp/error.hpp"
#include "launch/dial.hpp"
#include "launch/following_node.hpp"
#include "launch/leading_node.hpp"
#include "launch/node_words.hpp"
#include "launch/say.hpp"
#include "start/listening_socket.hpp"
#include "start/rank_environment.hpp"

namespace ddp::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kQuietWait{3000};       // nodes that are started together are apart by less
constexpr milliseconds kHelloTimeout{10'000};  // of one that has connected
constexpr milliseconds kPause{200};            // between two calls on node 0

TimeoutError missing(const std::string& what, milliseconds after) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(after).count();
  return {Origin{}, "ddprun", what + " after " + std::to_string(seconds) + " s",
          "is ddprun running there, and do --nnodes, --node-rank, --master-addr and --master-port agree?"};
}

/// Waits for one of them; a signal ends the waiting for good.
void wait_for(std::vector<pollfd> wanted, Signals& signals, Clock::time_point until) {
  wanted.push_back({signals.descriptor(), POLLIN, 0});
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  ::poll(wanted.data(), wanted.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, kQuietWait.count())));
  while (const auto signal = signals.next()) {
    if (*signal != SIGCHLD && *signal != SIGUSR1 && *signal != SIGUSR2) throw Interrupted{*signal};
  }
}

/// Node 0 while nodes are missing.
class Host {
 public:
  Host(const Options& options, Signals& signals)
      : options_(options),
        signals_(signals),
        socket_(options.local_address, options.master_port),
        present_(static_cast<std::size_t>(options.nodes)),
        hellos_(static_cast<std::size_t>(options.nodes)) {}

  /// Their links and what they said, by node; node 0's link is null.
  std::pair<std::vector<std::unique_ptr<Link>>, std::vector<Hello>> receive() {
    const auto start = Clock::now();
    bool told = false;
    if (!is_own_address(options_.master_address)) {
      say("warning: " + options_.master_address + " is no address of this machine, where the others look for node 0");
    }
    while (!absent().empty()) {
      wait_for(wanted(), signals_, told ? start + options_.join_timeout : start + kQuietWait);
      accept();
      listen();
      if (!told && Clock::now() - start >= kQuietWait && !absent().empty()) {
        say("waiting for " + absent() + " at " + place(options_.master_address, options_.master_port));
        told = true;
      }
      if (Clock::now() - start >= options_.join_timeout && !absent().empty()) give_up();
    }
    return {std::move(present_), std::move(hellos_)};
  }

 private:
  struct Guest {
    std::unique_ptr<Link> link;
    Clock::time_point limit;
    bool is_refused = false;
  };

  std::string absent() const {
    std::string text;
    for (std::size_t node = 1; node < present_.size(); ++node) {
      if (!present_[node]) text += (text.empty() ? "node " : ", node ") + std::to_string(node);
    }
    return text;
  }

  std::vector<pollfd> wanted() const {
    std::vector<pollfd> all{{socket_.descriptor(), POLLIN, 0}};
    for (const auto& guest : guests_) all.push_back(guest.link->wanted());
    for (const auto& link : present_) {
      if (link) all.push_back(link->wanted());
    }
    return all;
  }

  void accept() {
    while (auto caller = accept_from(socket_.descriptor())) {
      auto link = std::make_unique<Link>(std::move(caller->socket), caller->address);
      guests_.push_back({std::move(link), Clock::now() + kHelloTimeout});
    }
  }

  void listen() {
    for (auto& guest : guests_) {
      guest.link->look();
      if (guest.is_refused) continue;
      try {
        if (const auto message = guest.link->next()) welcome(guest, hello_of(*message));
      } catch (const std::runtime_error&) {  // a stranger, not of this job or any other
        guest.limit = {};
      }
    }
    std::erase_if(guests_, [](const Guest& guest) {
      return !guest.link || guest.link->is_over() || Clock::now() >= guest.limit;
    });
    for (std::size_t node = 1; node < present_.size(); ++node) {
      if (!present_[node]) continue;
      present_[node]->look();
      if (!present_[node]->is_over()) continue;
      say("node " + std::to_string(node) + " on " + hellos_[node].host + " has left again");
      present_[node].reset();
    }
  }

  void welcome(Guest& guest, const Hello& hello) {
    if (const auto why = why_not(hello); !why.empty()) {
      say("refusing node " + std::to_string(hello.node_rank) + " on " + hello.host + ": " + why);
      guest.link->send({kRefused, {why}});
      guest.is_refused = true;
      return;
    }
    const auto node = static_cast<std::size_t>(hello.node_rank);
    hellos_[node] = hello;
    present_[node] = std::make_unique<Link>(std::move(*guest.link));
    present_[node]->send({kPatience});
    guest.link.reset();
  }

  std::string why_not(const Hello& hello) const {
    const auto named = [](const std::string& id) { return id.empty() ? "without --rdzv-id" : "\"" + id + "\""; };
    if (hello.language != kLanguage) return "its ddprun is of another version";
    if (hello.job_id != options_.job_id) {
      return "it belongs to the job " + named(hello.job_id) + ", this is the job " + named(options_.job_id);
    }
    if (hello.nodes != options_.nodes) {
      return "it says --nnodes " + std::to_string(hello.nodes) + ", node 0 --nnodes " + std::to_string(options_.nodes);
    }
    const auto node = static_cast<std::size_t>(hello.node_rank);
    if (node == 0 || node >= present_.size()) return "--node-rank " + std::to_string(node) + " is none of the others";
    if (present_[node]) return "there is a node " + std::to_string(node) + " already, on " + hellos_[node].host;
    return {};
  }

  [[noreturn]] void give_up() {
    const auto error = missing(absent() + " did not come to " + place(options_.master_address, options_.master_port),
                               options_.join_timeout);
    for (const auto& link : present_) {
      if (link) link->send({kRefused, {error.happening()}});
    }
    throw error;
  }

  const Options& options_;
  Signals& signals_;
  const start::ListeningSocket socket_;
  std::vector<std::unique_ptr<Link>> present_;
  std::vector<Hello> hellos_;
  std::vector<Guest> guests_;
};

/// The next message from node 0; nothing where the connection ends without one, or the time.
std::optional<Message> await_message(Link& link, Signals& signals, Clock::time_point until) {
  for (;;) {
    link.look();
    if (auto message = link.next()) return message;
    if (link.is_over() || Clock::now() >= until) return std::nullopt;
    wait_for({link.wanted()}, signals, until);
  }
}

/// What node 0 says once all nodes are there; nothing where nobody answers. Node 0 counts its time from its own start.
std::optional<Terms> await_answer(Link& link, Signals& signals, milliseconds join_timeout) {
  auto message = await_message(link, signals, Clock::now() + kHelloTimeout);
  if (message && message->kind == kPatience) {
    message = await_message(link, signals, Clock::now() + join_timeout + kHelloTimeout);
  }
  if (!message) return std::nullopt;
  if (message->kind != kRefused || message->fields.size() != 1) return terms_of(*message);
  throw ConfigError({}, "ddprun", "node 0 at " + link.peer() + " refuses this node: " + message->fields[0],
                    "give all nodes the same --nnodes, --rdzv-id and --master-addr, and each its own --node-rank");
}

/// Sorts by time.
std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return text;
}

}  // namespace

std::string place(const std::string& host, std::uint16_t port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

Meeting lead_meeting(const Options& options, std::uint16_t store_port, Signals& signals) {
  Terms terms{.id = options.job_id.empty() ? start::make_job_id() : options.job_id,
              .log_name = {},
              .world_size = options.ranks,
              .nodes = options.nodes,
              .max_restarts = options.max_restarts,
              .store_port = store_port};
  if (wants_files(options.output))
    terms.log_name = choose_log_name(options.output, options.job_id.empty() ? now() + "-" + terms.id : terms.id);
  std::vector<OtherNode> others;
  if (options.nodes > 1) {
    auto [links, hellos] = Host(options, signals).receive();
    for (std::size_t node = 1; node < links.size(); ++node) {
      others.push_back({std::move(links[node]), "node " + std::to_string(node) + " on " + hellos[node].host,
                        terms.world_size, hellos[node].ranks});
      terms.world_size += hellos[node].ranks;
    }
    for (auto& other : others) {
      auto its = terms;
      its.first_rank = other.first_rank;
      other.link->send(words_of(its));
    }
  }
  // The grace time, SIGTERM's, SIGKILL's, and what is still to be written.
  constexpr milliseconds kBesides{30'000}, kUsual{30'000};
  const LeadingOptions leading{.world_size = terms.world_size,
                               .max_restarts = options.max_restarts,
                               .exit_grace = options.exit_grace,
                               .end_limit = options.shutdown_timeout.value_or(kUsual) + kBesides};
  return {terms, std::make_unique<LeadingNode>(leading, std::move(others))};
}

Meeting join_meeting(const Options& options, Signals& signals) {
  const auto there = place(options.master_address, options.master_port);
  const auto start = Clock::now(), end = start + options.join_timeout;
  bool told = false;
  for (;;) {
    auto call = dial(options.master_address, options.master_port, options.local_address, signals.descriptor());
    if (call.socket.get() >= 0) {
      auto link = std::make_unique<Link>(std::move(call.socket), there);
      link->send(
          words_of(Hello{kLanguage, options.job_id, options.nodes, options.node_rank, options.ranks, host_name()}));
      try {
        if (auto terms = await_answer(*link, signals, options.join_timeout))
          return {*terms, std::make_unique<FollowingNode>(std::move(link))};
        call.why = link->is_over() ? "somebody there hangs up" : "somebody listens there, but does not answer";
      } catch (const Error&) {
        throw;
      } catch (const std::runtime_error& error) {
        throw ConfigError({}, "ddprun", "at " + there + " is another kind of program: it says " + error.what(),
                          "give the job a --master-port that no other program uses");
      }
    }
    if (Clock::now() >= end)
      throw missing("the launcher of node 0 does not answer at " + there + " (" + call.why + ")", options.join_timeout);
    if (!told && Clock::now() - start >= kQuietWait) {
      say("waiting for node 0 at " + there + " (" + call.why + ")");
      told = true;
    }
    wait_for({}, signals, Clock::now() + kPause);
  }
}

}  // namespace ddp::launch
