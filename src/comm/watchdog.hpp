#pragma once
/// watchdog.hpp: looks after the calls that last, and says whom they wait for before their timeouts do.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/service_thread.hpp"
#include "comm/session.hpp"

namespace ddp::comm {

/// Its thread looks once a second. After two seconds in a call it sees whether a rank gives no answer, every five
/// seconds from then on, and warns of that at once. After Session::warn_after() in a call, and again whenever that time
/// has doubled, it warns with every rank's report. Of the ranks that wait in a call one does so for all.
class Watchdog {
 public:
  using Sessions = std::function<std::vector<std::shared_ptr<Session>>()>;

  /// Errors: std::system_error
  explicit Watchdog(Sessions sessions);

  /// False in a child of fork().
  bool is_of_this_process() const { return thread_.is_of_this_process(); }

 private:
  using Clock = std::chrono::steady_clock;
  /// What has been done about a session's oldest open call.
  struct Vigil {
    std::uint64_t ticket = 0;  // of the call, from 1
    Clock::time_point next_look{};
    std::uint32_t warned = 0;
    std::set<int> silent, named;  // ranks: at the last look; that were spoken of
  };

  void run(int stop);
  void look_after_all();
  static void look_after(Session& session, Vigil& vigil);
  static void look_for_silent(Session& session, const Call& call, Vigil& vigil);
  static void warn(Session& session, const Call& call, Vigil& vigil);

  const Sessions sessions_;
  std::map<const Session*, Vigil> vigils_;
  ServiceThread thread_;  // last: it uses what stands above
};

}  // namespace ddp::comm
