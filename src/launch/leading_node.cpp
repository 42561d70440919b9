#include "launch/leading_node.hpp"

#include <algorithm>
#include <csignal>
#include <stdexcept>

#include "launch/node_words.hpp"
#include "launch/say.hpp"

namespace ddp::launch {

LeadingNode::LeadingNode(const LeadingOptions& options, std::vector<OtherNode> others)
    : options_(options), others_(std::move(others)) {
  begin(0);
}

void LeadingNode::begin(int attempt) {
  attempt_ = attempt;
  report_ = {.outcomes = {}, .tails = {}, .begin = std::chrono::system_clock::now()};
  gone_.clear();
  finish_by_.reset();
  verdict_.clear();
  is_ending_ = false;
  tell_all({Command::Kind::start, attempt});
}

void LeadingNode::tell_all(const Command& command, const OtherNode* but) {
  commands_.push_back(command);
  for (auto& node : others_) {
    if (&node != but && node.link) node.link->send(words_of(command));
  }
}

void LeadingNode::rank_ended(const start::Outcome& outcome) {
  report_.outcomes.push_back(outcome);
  const bool is_last = static_cast<int>(report_.outcomes.size()) == options_.world_size;
  if (outcome.failed()) {
    end_attempt("rank " + std::to_string(outcome.rank) + " failed");
  } else if (!finish_by_ && !is_last) {
    finish_by_ = Clock::now() + options_.exit_grace;
  }
  if (is_last) finish_by_.reset();
}

// Once: what follows is its echo.
void LeadingNode::end_attempt(const std::string& why) {
  finish_by_.reset();
  if (is_ending_ || is_signalled_) return;
  is_ending_ = true;
  tell_all({Command::Kind::let_end, 0, why});
}

void LeadingNode::signalled(int signal) { signalled(signal, nullptr); }

// `by`: the node that has passed it on to its ranks already.
void LeadingNode::signalled(int signal, const OtherNode* by) {
  if (signal == SIGKILL) return tell_all({Command::Kind::kill}, by);
  if (signal != SIGUSR1 && signal != SIGUSR2) {
    is_signalled_ = true;
    finish_by_.reset();  // the signal's own limits are shorter
  }
  tell_all({Command::Kind::pass_on, signal}, by);
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
  if (finish_by_ && Clock::now() >= *finish_by_) {
    verdict_ = "ranks have ended well while others still ran after another " +
               std::to_string(std::chrono::ceil<std::chrono::seconds>(options_.exit_grace).count()) +
               " s (see --exit-grace)";
    end_attempt(verdict_);
  }
}

void LeadingNode::hear(OtherNode& node, const Message& message) {
  if (message.kind == kRankEnded) {
    rank_ended(outcome_of(message));
  } else if (message.kind == kTail) {
    const auto [rank, text] = tail_of(message);
    report_.tails[rank] = text;
  } else if (message.kind == kRanksAreGone) {
    gone(static_cast<int>(&node - others_.data()) + 1);
  } else if (message.kind == kSignalled) {
    signalled(signal_of(message), &node);
  } else {
    throw std::runtime_error(message.kind);
  }
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
  if (code != 0 && !verdict_.empty() && !lost_a_node_) say(verdict_);  // else it was said at once
  for (const auto& line : summary(report_)) say(line);
  if (code != 0 && !is_signalled_ && !lost_a_node_ && attempt_ < options_.max_restarts) {
    say("restarting all ranks (restart " + std::to_string(attempt_ + 1) + " of at most " +
        std::to_string(options_.max_restarts) + ")");
    return begin(attempt_ + 1);
  }
  commands_.push_back({Command::Kind::leave, code});
  const auto* const failure = start::first_failure(report_.outcomes);
  const auto why = code == 0           ? std::string()
                   : !verdict_.empty() ? verdict_
                   : failure           ? summary({{*failure}, {}, report_.begin}).front()
                                       : std::string();
  for (auto& node : others_) {
    if (node.link) node.link->send(words_of({Command::Kind::leave, code, why}));
  }
}

std::vector<pollfd> LeadingNode::wanted() const {
  std::vector<pollfd> all;
  for (const auto& node : others_) {
    if (node.link) all.push_back(node.link->wanted());
  }
  return all;
}

void LeadingNode::part() {
  constexpr std::chrono::seconds kPatience{3};
  const auto end = Clock::now() + kPatience;
  for (auto& node : others_) {
    while (node.link && !node.link->is_over() && Clock::now() < end) {  // the other closes once it has read
      auto wanted = node.link->wanted();
      ::poll(&wanted, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count()));
      node.link->look();
    }
  }
}

}  // namespace ddp::launch
