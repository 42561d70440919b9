#include "comm/roll_call.hpp"

#include "comm/stop_agreement.hpp"

#include <algorithm>
#include <sstream>
#include <thread>

#include "comm/text_of.hpp"
#include "ddp/error.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kPart = "init_process_group";
constexpr std::chrono::seconds kQuietWait{3};
constexpr std::chrono::seconds kCourtesy{2};  // a rank that is alive looks every 20 ms

std::string key_of(std::int64_t index) { return "arrival/" + std::to_string(index); }

std::string packed(const Arrival& arrival) {
  std::ostringstream text;
  text << arrival.rank << '\n'
       << arrival.world_size << '\n'
       << arrival.host << '\n'
       << arrival.pid << '\n'
       << arrival.watch_port << '\n'
       << arrival.watch_token << '\n'
       << arrival.backend << '\n'
       << arrival.device.device << '\n'
       << arrival.device.library << '\n'
       << arrival.trouble << '\n';
  return text.str();
}

Arrival unpacked(const std::string& text) {
  Arrival arrival;
  std::istringstream stream(text);
  stream >> arrival.rank >> arrival.world_size >> arrival.host >> arrival.pid >> arrival.watch_port;
  stream.ignore();
  for (auto* const line :
       {&arrival.watch_token, &arrival.backend, &arrival.device.device, &arrival.device.library, &arrival.trouble})
    std::getline(stream, *line);
  return arrival;
}

std::string listed(const std::vector<std::string>& items) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

}  // namespace

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, const Environment& environment, std::string place)
    : store_(std::move(store)), environment_(environment), place_(std::move(place)) {}

void RollCall::arrive(const Arrival& self) {
  const auto index = store_->add("arrivals", 1);
  store_->set(key_of(index), packed(self));
}

void RollCall::give_up(bool all) const noexcept {
  try {
    store_->add("refusals", 1);
    const auto deadline = Clock::now() + kCourtesy;
    const auto awaited = [&] {
      return std::max<std::int64_t>(store_->add("arrivals", 0), all ? environment_.world_size : 0);
    };
    while (environment_.rank == 0 && store_->add("refusals", 0) < awaited() && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } catch (const std::exception&) {  // the store is gone, and with it whoever could want to know
  }
}

std::vector<Arrival> RollCall::wait_for_all(std::chrono::milliseconds timeout,
                                            const std::function<void(const Arrival&)>& on_arrival,
                                            const std::function<void()>& poll) {
  const auto start = Clock::now();
  bool told = false;
  auto pause = std::chrono::milliseconds(1);
  const auto world = static_cast<std::size_t>(environment_.world_size);
  while (here_.size() < world) {
    if (see_next()) {
      on_arrival(unpacked(store_->get_to_str(key_of(seen_))));
      pause = std::chrono::milliseconds(1);
      continue;
    }
    if (told) require_no_wish(environment_, kPart);
    try {
      poll();
    } catch (...) {
      while (see_next()) {  // if another rank gave up over a contradiction, this one can see it for itself
      }
      throw;
    }
    if (Clock::now() - start > timeout) {
      throw TimeoutError(
          {environment_.rank, environment_.world_size}, kPart,
          "missing " + missing() + ", not come to " + place_ + " within " + in_seconds(timeout) +
              "; here: " + present(),
          "they were not started, have died before they came here, or cannot reach that place: look at their "
          "output, or raise the timeout");
    }
    if (!told && Clock::now() - start > kQuietWait) {
      told = true;
      if (!here_.empty() && here_.begin()->first == environment_.rank)
        log::all.warn("waiting at {} for {}; here: {}", place_, missing(), present());
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
  std::vector<Arrival> arrivals;
  for (auto& [rank, arrival] : here_) arrivals.push_back(arrival);
  return arrivals;
}

// Takes note of one more arrival, if there is one.
bool RollCall::see_next() {
  if (!store_->check({key_of(seen_ + 1)})) return false;
  ++seen_;
  const auto arrival = unpacked(store_->get_to_str(key_of(seen_)));
  check(arrival);
  here_.emplace(arrival.rank, arrival);
  return true;
}

void RollCall::check(const Arrival& arrival) const {
  const auto who = [](const Arrival& one) {
    return "rank " + std::to_string(one.rank) + " (" + one.host + ", process " + std::to_string(one.pid) + ')';
  };
  if (!arrival.trouble.empty()) refuse(who(arrival) + " cannot take part: " + arrival.trouble, "");
  if (const auto before = here_.find(arrival.rank); before != here_.end()) {
    refuse("rank " + std::to_string(arrival.rank) + " came twice: " + who(before->second) + " and " + who(arrival),
           "give each process its own RANK; where a store file is used, remove what an earlier run has left");
  }
  if (const auto first = here_.begin(); first != here_.end() && first->second.backend != arrival.backend) {
    const auto backend_of = [&](const Arrival& one) { return who(one) + " has \"" + one.backend + '"'; };
    refuse("the ranks have different backends: " + backend_of(first->second) + ", " + backend_of(arrival),
           "give all ranks the same backend, and the same DDP_BACKEND; of \"auto\" becomes \"nccl\" where a rank sees "
           "a GPU");
  }
  check_device(arrival);
  if (arrival.world_size == environment_.world_size) return;
  auto size_of = [&](const Arrival& one) { return who(one) + " says " + std::to_string(one.world_size); };
  std::string others;
  for (const auto& [rank, one] : here_) others += size_of(one) + ", ";
  if (here_.empty())
    others = "rank " + std::to_string(environment_.rank) + " says " + std::to_string(environment_.world_size) + ", ";
  refuse("the ranks disagree about the world size: " + others + size_of(arrival), "set one WORLD_SIZE for all");
}

void RollCall::check_device(const Arrival& arrival) const {
  const auto who = [](const Arrival& one) { return "rank " + std::to_string(one.rank) + " (" + one.host + ')'; };
  for (const auto& [rank, one] : here_) {
    if (one.device.library != arrival.device.library)
      refuse("the ranks have different libraries: " + who(one) + " has " + one.device.library + ", " + who(arrival) +
                 " has " + arrival.device.library,
             "give all hosts the same LibTorch");
    if (!arrival.device.device.empty() && one.device.device == arrival.device.device)
      refuse("two ranks have one device, " + arrival.device.device + ": " + who(rank < arrival.rank ? one : arrival) +
                 " and " + who(rank < arrival.rank ? arrival : one),
             "start one process a device, each with its own LOCAL_RANK or CUDA_VISIBLE_DEVICES; to share a device, use "
             "backend \"gloo\" or \"shm\" and ProcessGroupOptions::device");
  }
}

void RollCall::refuse(const std::string& what, const std::string& remedy) const {
  throw ConfigError({environment_.rank, environment_.world_size}, kPart, what, remedy);
}

std::string RollCall::missing() const {
  std::vector<std::string> ranks;
  for (int rank = 0; rank < environment_.world_size; ++rank)
    if (!here_.contains(rank)) ranks.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + listed(ranks) + " of " + std::to_string(environment_.world_size);
}

std::string RollCall::present() const {
  std::vector<std::string> ranks;
  for (const auto& [rank, arrival] : here_) ranks.push_back(std::to_string(rank) + " (" + arrival.host + ')');
  return "rank " + listed(ranks);
}

}  // namespace ddp::comm
