// new_group: some of a group's ranks as a group of its own, with its own watch, numbers and backend.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "comm/own_address.hpp"
#include "comm/planned_calls.hpp"
#include "comm/process_group_impl.hpp"
#include "comm/sessions.hpp"
#include "comm/text_of.hpp"

namespace ddp {
namespace {

constexpr const char* kPart = "new_group";
constexpr char kTrouble = '!';

std::vector<int> sorted(std::vector<int> ranks, int size) {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) throw std::logic_error("new_group: no ranks");
  if (ranks.front() < 0 || ranks.back() >= size)
    throw std::logic_error("new_group: ranks " + comm::listed(ranks) + " are not all ranks of " + std::to_string(size));
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end())
    throw std::logic_error("new_group: ranks " + comm::listed(ranks) + " name a rank twice");
  return ranks;
}

void require_same(ProcessGroup& parent, const std::vector<int>& in_world, const std::vector<int>& mine) {
  const auto all = parent.all_gather_bytes(comm::listed(mine), {.label = "ranks of new_group"});
  const auto other = std::find_if(all.begin(), all.end(), [&](const auto& text) { return text != all[0]; });
  if (other == all.end()) return;
  throw CallMismatchError(parent.origin(), kPart,
                          "rank " + std::to_string(in_world[0]) + " asks for ranks " + all[0] + ", rank " +
                              std::to_string(in_world[static_cast<std::size_t>(other - all.begin())]) + " for ranks " +
                              *other,
                          "call it with the same ranks on every rank, also on those that are not among them");
}

// The environment of a rank in the new group; the hosts are the parent's.
Environment environment_of(const ProcessGroup& parent, const comm::Session& session, const std::vector<int>& ranks) {
  auto environment = parent.environment();
  const auto host_of = [&](int rank) { return session.arrivals()[static_cast<std::size_t>(rank)].host; };
  const auto here = host_of(parent.rank());
  environment.world_size = static_cast<int>(ranks.size());
  environment.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), parent.rank()) - ranks.begin());
  environment.local_world_size =
      static_cast<int>(std::count_if(ranks.begin(), ranks.end(), [&](int rank) { return host_of(rank) == here; }));
  environment.store_socket.reset();
  return environment;
}

// Where the new group's watch is: its first rank tells all of the parent's.
comm::Arrival meet(ProcessGroup& parent, comm::Session* session, const Environment& environment, int first) {
  std::ostringstream offer;
  if (session != nullptr && environment.rank == 0 && environment.world_size > 1) {
    try {
      comm::Arrival self;
      session->open_hub(self, environment);
      offer << self.watch_port << ' ' << self.watch_token << ' ' << comm::reachable_address(parent.environment());
    } catch (const std::exception& error) {
      offer.str(kTrouble + std::string(error.what()));
    }
  }
  const auto told =
      parent.all_gather_bytes(offer.str(), {.label = "watch of new_group"})[static_cast<std::size_t>(first)];
  if (!told.empty() && told[0] == kTrouble)
    throw CommError(parent.origin(), kPart, "rank " + std::to_string(first) + ": " + told.substr(1));
  comm::Arrival arrival;
  std::istringstream stream(told);
  stream >> arrival.watch_port >> arrival.watch_token >> arrival.host;
  return arrival;
}

// Nobody goes on before all members are connected: they need what the others serve, the store above all.
void finish_together(ProcessGroup& parent, const std::function<void()>& connect) {
  std::exception_ptr own;
  std::string text;
  try {
    connect();
  } catch (const std::exception& error) {
    own = std::current_exception();
    text = error.what();
  }
  const auto troubles = parent.all_gather_bytes(text, {.label = "end of new_group"});
  if (own) std::rethrow_exception(own);
  for (const auto& trouble : troubles)
    if (!trouble.empty()) throw CommError(parent.origin(), kPart, "a rank could not connect: " + trouble);
}

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks, const SubGroupOptions& options) {
  const auto members = sorted(ranks, size());
  require_same(*this, impl_->session->ranks(), members);
  const auto number = std::to_string(impl_->sub_groups_made++);
  const bool is_member = std::binary_search(members.begin(), members.end(), rank());
  auto impl = std::make_unique<Impl>();
  if (is_member) {
    impl->environment = environment_of(*this, *impl_->session, members);
    auto store = impl_->session->store();
    if (store) store = c10::make_intrusive<c10d::PrefixStore>("group/" + number, store);
    impl->session = impl_->session->part(members, std::move(store));
  }
  const auto first = meet(*this, impl->session.get(), impl->environment, members[0]);
  impl->timeout = options.timeout.value_or(timeout());
  impl->device = device();
  impl->host_backend = impl_->host_backend;
  impl->engine = impl_->engine;
  impl->nccl = impl_->nccl;
  if (members.size() == 1) impl->backend_name = "none";
  const auto connected = [&] {
    if (members.size() == 1) return;
    if (!is_member) return impl_->help_to_split(kPart, members);
    if (!impl->environment.single_host()) impl->environment.master_address = first.host;
    impl->session->open_link(impl->environment, first, impl->timeout);
    comm::remember(impl->session);
    impl->connect(kPart, impl_.get(), members);
  };
  try {
    finish_together(*this, connected);
  } catch (...) {
    if (is_member) impl->session->leave();
    throw;
  }
  return is_member ? std::make_shared<ProcessGroup>(std::move(impl)) : nullptr;
}

std::shared_ptr<ProcessGroup> comm::PlannedCalls::side_group(ProcessGroup& group) {
  auto& side = group.impl_->side_group;
  if (side || group.size() == 1) return side;
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  return side = group.new_group(all);
}

}  // namespace ddp
