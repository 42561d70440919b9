#pragma once
/// roll_call.hpp: the ranks of a job find each other in the store: who is here, who is missing, who
/// came twice, who disagrees about the world size or the backend.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/device_backend.hpp"
#include "ddp/environment.hpp"

namespace ddp::comm {

/// What a rank says of itself.
struct Arrival {
  int rank = -1;
  int world_size = 0;
  std::string host;
  std::int64_t pid = 0;
  std::uint16_t watch_port = 0;  ///< rank 0: its WatchHub's
  std::string watch_token = {};  ///< rank 0: its WatchHub's
  std::string backend = {};      ///< as the rank has asked for it
  DeviceIdentity device = {};    ///< on which it works
  std::string trouble = {};      ///< why it cannot take part; a line
};

class RollCall {
 public:
  /// `place` says where the ranks meet.
  RollCall(c10::intrusive_ptr<c10d::Store> store, const Environment& environment, std::string place);

  /// Announces this rank to all.
  void arrive(const Arrival& self);

  /// This rank gives up. Rank 0, with whom the store ends, stays a moment until all who are here, or `all` who are to
  /// come, have done so too: they have then seen what is wrong for themselves.
  void give_up(bool all) const noexcept;

  /// Collective. Returns every rank's arrival, in rank order. `on_arrival` sees each as it comes,
  /// `poll` is called between looks and may throw to end the wait.
  /// Errors: ConfigError on every rank that is here when two ranks contradict each other;
  /// TimeoutError naming the missing ranks.
  std::vector<Arrival> wait_for_all(std::chrono::milliseconds timeout,
                                    const std::function<void(const Arrival&)>& on_arrival,
                                    const std::function<void()>& poll);

 private:
  bool see_next();
  void check(const Arrival& arrival) const;
  void check_device(const Arrival& arrival) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const;
  std::string missing() const;
  std::string present() const;

  c10::intrusive_ptr<c10d::Store> store_;
  Environment environment_;
  std::string place_;
  std::int64_t seen_ = 0;
  std::map<int, Arrival> here_;
};

}  // namespace ddp::comm
