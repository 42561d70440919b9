#include "launch/leading_node.hpp"

#include <algorithm>
#include <csignal>
#include <stdexcept>

#include "launch/node_words.hpp"
#include "launch/say.hpp"
#include "start/signal_name.hpp"

namespace ddp::launch {

namespace {

constexpr std::chrono::seconds kKillLimit{15};  // a launcher waits ten for ranks that it has killed

}  // namespace

LeadingNode::LeadingNode(const LeadingOptions& options, std::vector<OtherNode> others)
    : options_(options), others_(std::move(others)) {
  begin(0);
}

void LeadingNode::begin(int attempt, const std::string& why) {
  attempt_ = attempt;
  report_ = {.outcomes = {}, .tails = {}, .begin = std::chrono::system_clock::now()};
  gone_.clear();
  finish_by_.reset();
  gone_by_.reset();
  verdict_.clear();
  is_ending_ = false;
  tell_all({Command::Kind::start, attempt, why});
}

void LeadingNode::tell_all(const Command& command) {
  commands_.push_back(command);
  for (auto& node : others_) {
    if (node.link) node.link->send(words_of(command));
  }
}

void LeadingNode::rank_ended(const start::Outcome& outcome) {
  report_.outcomes.push_back(outcome);
  const bool is_last = static_cast<int>(report_.outcomes.size()) == options_.world_size;
  if (outcome.failed()) {
    end_attempt("a rank has failed: this node's are to end, too");  // which one is known once all have ended
  } else if (!finish_by_ && !is_last) {
    finish_by_ = Clock::now() + options_.exit_grace;
  }
  if (is_last) finish_by_.reset();
}

// Once: what follows is its echo.
void LeadingNode::end_attempt(const std::string& why, bool has_waited) {
  finish_by_.reset();
  if (is_ending_ || signal_ != 0) return;
  is_ending_ = true;
  gone_by_ = Clock::now() + options_.end_limit;
  tell_all({Command::Kind::let_end, has_waited ? 1 : 0, why});
}

void LeadingNode::signalled(int signal) {
  if (signal == SIGKILL) {
    gone_by_ = Clock::now() + kKillLimit;
    return tell_all({Command::Kind::kill});
  }
  if (signal != SIGUSR1 && signal != SIGUSR2) {
    signal_ = signal;
    gone_by_ = Clock::now() + options_.end_limit;
    finish_by_.reset();  // the signal's own limits are shorter
  }
  tell_all({Command::Kind::pass_on, signal});
}

void LeadingNode::ranks_are_gone(const std::map<int, std::string>& tails) {
  report_.tails.insert(tails.begin(), tails.end());
  gone(0);
}

void LeadingNode::gone(int node) {
  gone_.insert(node);
  if (gone_.size() == others_.size() + 1) conclude();
}

void LeadingNode::look() {
  for (auto& node : others_) {
    if (!node.link) continue;
    node.link->look();
    try {
      while (node.link) {
        const auto message = node.link->next();
        if (!message) break;
        hear(node, *message);
      }
    } catch (const std::exception& error) {  // of what it says
      lose(node, std::string("speaks strangely: ") + error.what());
    }
    if (node.link && node.link->is_over()) lose(node, "is gone, or cannot be reached any more");
  }
  if (gone_by_ && Clock::now() >= *gone_by_) {
    gone_by_.reset();
    for (std::size_t i = 0; i < others_.size(); ++i) {
      if (others_[i].link && !gone_.contains(static_cast<int>(i) + 1)) lose(others_[i], "does not answer any more");
    }
  }
  if (finish_by_ && Clock::now() >= *finish_by_) {
    verdict_ = "ranks have ended well while others still ran after another " +
               std::to_string(std::chrono::ceil<std::chrono::seconds>(options_.exit_grace).count()) +
               " s (see --exit-grace)";
    say(verdict_);
    end_attempt(verdict_, true);
  }
}

void LeadingNode::hear(OtherNode& node, const Message& message) {
  if (message.kind == kRankEnded) {
    rank_ended(checked(outcome_of(message), node));
  } else if (message.kind == kTail) {
    const auto [rank, text] = tail_of(message);
    report_.tails[rank] = text;
  } else if (message.kind == kRanksAreGone) {
    gone(static_cast<int>(&node - others_.data()) + 1);
  } else if (message.kind == kSignalled) {
    signalled(signal_of(message));
  } else {
    throw std::runtime_error(message.kind);
  }
}

// One of that node's ranks, once.
start::Outcome LeadingNode::checked(start::Outcome outcome, const OtherNode& node) const {
  const bool is_its = outcome.rank >= node.first_rank && outcome.rank < node.first_rank + node.ranks;
  const auto is_same = [&](const start::Outcome& other) { return other.rank == outcome.rank; };
  if (!is_its || std::ranges::any_of(report_.outcomes, is_same)) {
    throw std::runtime_error("rank " + std::to_string(outcome.rank) + " has ended");
  }
  outcome.host = plain(outcome.host);
  return outcome;
}

void LeadingNode::lose(OtherNode& node, const std::string& why) {
  node.link.reset();
  lost_a_node_ = true;
  verdict_ = "the launcher of " + node.name + " " + why;
  say(verdict_ + "; it had " + std::to_string(node.ranks) + " ranks from rank " + std::to_string(node.first_rank) +
      " on");
  end_attempt(verdict_);
  if (const int number = static_cast<int>(&node - others_.data()) + 1; !gone_.contains(number)) gone(number);
}

int LeadingNode::exit_code() const {
  if (lost_a_node_) return 1;
  const auto* const failure = start::first_failure(report_.outcomes);
  if (!verdict_.empty() && (!failure || failure->sent != 0)) return 1;
  return failure ? failure->exit_code() : 0;
}

void LeadingNode::conclude() {
  std::ranges::stable_sort(report_.outcomes, {}, &start::Outcome::after);
  const int code = exit_code();
  for (const auto& line : summary(report_)) say(line);
  const auto why = verdict();
  if (code != 0 && signal_ == 0 && !lost_a_node_ && attempt_ < options_.max_restarts) {
    const auto again = "restarting all ranks (restart " + std::to_string(attempt_ + 1) + " of at most " +
                       std::to_string(options_.max_restarts) + ")";
    say(again);
    return begin(attempt_ + 1, why + "; " + again);
  }
  if (code != 0 && options_.max_restarts > 0 && attempt_ == options_.max_restarts) {
    say("no restart is left (" + std::to_string(attempt_) + " of " + std::to_string(options_.max_restarts) + ")");
  }
  if (code == 0 && signal_ != 0) say("all ranks have ended well after " + start::signal_name(signal_));
  commands_.push_back({Command::Kind::leave, code});
  for (auto& node : others_) {
    if (node.link) node.link->send(words_of({Command::Kind::leave, code, code == 0 ? std::string() : why}));
  }
}

// In a line, for other nodes.
std::string LeadingNode::verdict() const {
  const auto* const failure = start::first_failure(report_.outcomes);
  if (!verdict_.empty() || !failure) return verdict_;
  return summary({{*failure}, {}, report_.begin}).front();
}

std::optional<Clock::time_point> LeadingNode::next_look() const {
  if (!finish_by_ || !gone_by_) return finish_by_ ? finish_by_ : gone_by_;
  return std::min(*finish_by_, *gone_by_);
}

std::vector<pollfd> LeadingNode::wanted() const {
  std::vector<pollfd> all;
  for (const auto& node : others_) {
    if (node.link) all.push_back(node.link->wanted());
  }
  return all;
}

void LeadingNode::part() {
  constexpr std::chrono::seconds kLongest{3};
  const auto end = Clock::now() + kLongest;
  for (auto& node : others_) {
    while (node.link && !node.link->is_over() && Clock::now() < end) {  // the other closes once it has read
      auto wanted = node.link->wanted();
      ::poll(&wanted, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count()));
      node.link->look();
    }
  }
}

}  // namespace ddp::launch
