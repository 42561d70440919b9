#pragma once
/// following_node.hpp: a node that does what node 0 says.

#include <memory>

#include "launch/link.hpp"
#include "launch/nodes.hpp"

namespace ddp::launch {

class FollowingNode : public Nodes {
 public:
  explicit FollowingNode(std::unique_ptr<Link> leader) : leader_(std::move(leader)) {}

  void rank_ended(const start::Outcome& outcome) override;
  void ranks_are_gone(const std::map<int, std::string>& tails) override;
  void signalled(int signal) override;
  void look() override;
  std::vector<pollfd> wanted() const override;
  std::optional<Clock::time_point> next_look() const override { return std::nullopt; }
  void part() override {}

 private:
  void lose_leader(const std::string& why);

  std::unique_ptr<Link> leader_;  // null: it is lost
  bool is_running_ = false;       // an attempt
  bool may_leave_ = false;        // node 0 has said so
};

}  // namespace ddp::launch
