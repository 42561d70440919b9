#pragma once
/// shared.hpp: values that a test has in common with its ranks.

#include <sys/mman.h>

#include <new>

namespace ddp::testing {

/// A value that the test and its ranks share. Make it before the ranks are forked.
template <class T>
class Shared {
 public:
  Shared() {
    void* const memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory) T{};
  }
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

}  // namespace ddp::testing
