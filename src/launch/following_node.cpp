#include "launch/following_node.hpp"

#include <csignal>
#include <stdexcept>

#include "launch/node_words.hpp"

namespace ddp::launch {
void FollowingNode::rank_ended(const start::Outcome& outcome) {
  if (leader_) leader_->send(words_of(outcome));
}

void FollowingNode::ranks_are_gone(const std::map<int, std::string>& tails) {
  is_running_ = false;
  if (!leader_) return commands_.push_back({Command::Kind::leave, 1});  // why has been said
  for (const auto& [rank, text] : tails) leader_->send(words_of_tail(rank, text));
  leader_->send({kRanksAreGone});
}

// Node 0 has all nodes pass it on, this one too, so that ranks get it which node 0 was just starting. A signal that
// ranks get once they have at once.
void FollowingNode::signalled(int signal) {
  if (leader_) leader_->send(words_of_signal(signal));
  const bool is_a_question = signal == SIGUSR1 || signal == SIGUSR2;
  if (leader_ && is_a_question) return;
  commands_.push_back(signal == SIGKILL ? Command{Command::Kind::kill} : Command{Command::Kind::pass_on, signal});
}

void FollowingNode::look() {
  if (!leader_) return;
  leader_->look();
  try {
    while (const auto message = leader_->next()) {
      commands_.push_back(command_of(*message));
      if (commands_.back().kind == Command::Kind::start) is_running_ = true;
      if (commands_.back().kind == Command::Kind::leave) may_leave_ = true;
    }
  } catch (const std::exception& error) {
    return lose_leader(std::string("the launcher of node 0 speaks strangely: ") + error.what());
  }
  if (leader_->is_over() && !may_leave_) lose_leader("the launcher of node 0 is gone, or cannot be reached any more");
}

void FollowingNode::lose_leader(const std::string& why) {
  leader_.reset();
  commands_.push_back(is_running_ ? Command{Command::Kind::let_end, 0, why} : Command{Command::Kind::leave, 1, why});
}

std::vector<pollfd> FollowingNode::wanted() const {
  if (!leader_ || leader_->is_over()) return {};
  return {leader_->wanted()};
}

}  // namespace ddp::launch
