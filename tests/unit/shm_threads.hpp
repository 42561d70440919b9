#pragma once
/// shm_threads.hpp: threads that are joined at the end.

#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace ddp::comm::shm::testing {

class Threads {
 public:
  ~Threads() { join(); }
  void start(std::function<void()> body) { threads_.emplace_back(std::move(body)); }
  void join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace ddp::comm::shm::testing
