#include <cstddef>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "ddp/log.hpp"

namespace ddp::log {
namespace {

/// How often each place in the source was come by. A place is known by where its file's name lies in memory, so that
/// no call reads that name.
class Counts {
 public:
  std::int64_t next(const std::source_location& place) {
    const Place key{reinterpret_cast<std::uintptr_t>(place.file_name()), place.line(), place.column()};
    const std::scoped_lock lock(mutex_);
    return counts_[key]++;
  }

 private:
  using Place = std::tuple<std::uintptr_t, std::uint_least32_t, std::uint_least32_t>;
  std::mutex mutex_;
  std::map<Place, std::int64_t> counts_;
};

/// Never destroyed: threads that outlive main() may still speak.
Counts& counts() {
  static auto* const instance = new Counts;
  return *instance;
}

}  // namespace

Every every(std::int64_t calls, std::source_location place) {
  if (calls < 1)
    throw std::invalid_argument("log::every(" + std::to_string(calls) + "): the number of calls must be at least 1");
  return Every(counts().next(place) % calls == 0);
}

}  // namespace ddp::log
