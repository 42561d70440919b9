#pragma once
/// peer_watch_fixture.hpp: a hub and links whose events are recorded.

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/peer_watch.hpp"
#include "support/text.hpp"

namespace ddp::comm::testing {

inline constexpr std::chrono::seconds kLimit{10};  // for what takes milliseconds

using ddp::testing::contains;

/// One link and what it was told.
class RecordedLink {
 public:
  explicit RecordedLink(const WatchLink::Options& options, std::function<std::string()> status = {})
      : link_(std::make_unique<WatchLink>(options, events(std::move(status)))) {}

  WatchLink& operator*() { return *link_; }
  WatchLink* operator->() { return link_.get(); }
  void destroy() { link_.reset(); }

  /// The one failure, or rank -1 when none came in time.
  Failure failure(std::chrono::milliseconds limit = kLimit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return !failures_.empty(); });
    return failures_.empty() ? Failure{} : failures_.front();
  }
  std::size_t failure_count() {
    const std::lock_guard lock(mutex_);
    return failures_.size();
  }
  /// Waits until `count` ranks have left.
  std::map<int, std::uint64_t> left(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLimit, [&] { return left_.size() >= count; });
    return left_;
  }

 private:
  WatchEvents events(std::function<std::string()> status) {
    return {.on_failure =
                [this](const Failure& failure) {
                  const std::lock_guard lock(mutex_);
                  failures_.push_back(failure);
                  changed_.notify_all();
                },
            .on_left =
                [this](int rank, std::uint64_t last_call) {
                  const std::lock_guard lock(mutex_);
                  left_[rank] = last_call;
                  changed_.notify_all();
                },
            .status = std::move(status),
            .report = [](std::uint64_t call) { return "report about " + std::to_string(call); }};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Failure> failures_;
  std::map<int, std::uint64_t> left_;
  std::unique_ptr<WatchLink> link_;  // last: its thread uses the others
};

/// A hub with links 0 .. joined - 1 in this process.
class World {
 public:
  explicit World(int world_size, int joined = -1, std::chrono::milliseconds echo_wait = std::chrono::seconds(5))
      : size_(world_size),
        hub_(std::make_unique<WatchHub>(
            WatchHub::Options{.world_size = world_size, .token = "job 7", .echo_wait = echo_wait})) {
    for (int rank = 0; rank < (joined < 0 ? world_size : joined); ++rank) join(rank);
  }
  ~World() {
    for (auto& link : links_) link->destroy();
  }

  WatchLink::Options options(int rank) const {
    return {.host = "localhost",
            .port = hub_->port(),
            .rank = rank,
            .world_size = size_,
            .token = "job 7",
            .connect_timeout = kLimit};
  }
  RecordedLink& join(int rank) {
    links_.push_back(std::make_unique<RecordedLink>(options(rank), [rank] { return "line " + std::to_string(rank); }));
    return *links_.back();
  }
  RecordedLink& operator[](int rank) { return *links_.at(static_cast<std::size_t>(rank)); }
  WatchHub& hub() { return *hub_; }
  void destroy_hub() { hub_.reset(); }

  /// The failure that all ranks but `except` were told; differing ranks are a test failure.
  Failure common_failure(int except = -1) {
    Failure common;
    for (int rank = 0; rank < static_cast<int>(links_.size()); ++rank) {
      if (rank == except) continue;
      const Failure one = (*this)[rank].failure();
      if (common.rank < 0) common = one;
      EXPECT_EQ(one.rank, common.rank) << "rank " << rank;
      EXPECT_EQ(one.kind, common.kind) << "rank " << rank;
      EXPECT_EQ(one.text, common.text) << "rank " << rank;
      EXPECT_EQ((*this)[rank].failure_count(), 1u) << "rank " << rank;
    }
    return common;
  }

 private:
  int size_;
  std::unique_ptr<WatchHub> hub_;
  std::vector<std::unique_ptr<RecordedLink>> links_;
};

}  // namespace ddp::comm::testing
