#pragma once
/// leading_node.hpp: node 0, which decides for all.

#include <memory>
#include <set>

#include "launch/link.hpp"
#include "launch/nodes.hpp"
#include "launch/summary.hpp"

namespace ddp::launch {

struct LeadingOptions {
  int world_size = 1;
  int max_restarts = 0;
  /// How long others may go on after a rank has ended well.
  std::chrono::milliseconds exit_grace{300'000};
  /// Within this a node's ranks are gone, once they were told to end.
  std::chrono::milliseconds end_limit{60'000};
};

/// Another node: its launcher and its ranks.
struct OtherNode {
  std::unique_ptr<Link> link;  ///< null: it is lost
  std::string name;            ///< for texts: "node 1 on HOST"
  int first_rank = 0, ranks = 0;
};

class LeadingNode : public Nodes {
 public:
  /// `others`: those of nodes 1, 2, ... The first command is the first attempt's start.
  LeadingNode(const LeadingOptions& options, std::vector<OtherNode> others);

  void rank_ended(const start::Outcome& outcome) override;
  void ranks_are_gone(const std::map<int, std::string>& tails) override;
  void signalled(int signal) override;
  void look() override;
  std::vector<pollfd> wanted() const override;
  std::optional<Clock::time_point> next_look() const override;
  void part() override;

 private:
  void begin(int attempt, const std::string& why = {});
  void tell_all(const Command& command);
  void hear(OtherNode& node, const Message& message);
  void lose(OtherNode& node, const std::string& why);
  void end_attempt(const std::string& why, bool has_waited = false);
  void gone(int node);
  void conclude();
  start::Outcome checked(start::Outcome outcome, const OtherNode& node) const;
  std::string verdict() const;
  int exit_code() const;

  const LeadingOptions options_;
  std::vector<OtherNode> others_;
  int attempt_ = 0;
  Report report_;
  std::set<int> gone_;                          // nodes of which no rank is left
  std::optional<Clock::time_point> finish_by_;  // for ranks that run on after one has ended well
  std::optional<Clock::time_point> gone_by_;    // for nodes whose ranks were told to end
  std::string verdict_;                         // why the attempt failed, where no rank's end says it
  bool is_ending_ = false;
  int signal_ = 0;  // that told all ranks to end; 0: none
  bool lost_a_node_ = false;
};

}  // namespace ddp::launch
