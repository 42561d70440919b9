#pragma once
/// pinned_slot.hpp: a place for one object that others read at any moment, also in a signal's handler.

#include <atomic>
#include <chrono>
#include <thread>

namespace ddp {

/// Readers never wait. Who takes the object out waits for those that still read it, but not for ever, for one of them
/// may be a handler in which the process ends.
///
/// Threads: all members are safe; read() also in a signal's handler. The slot does not own the object.
template <class T>
class PinnedSlot {
 public:
  /// False where there is one already.
  bool put(T* object) noexcept {
    T* none = nullptr;
    return object_.compare_exchange_strong(none, object);
  }
  bool holds(const T* object) const noexcept { return object_ == object; }

  /// The object that has been taken out, if it was there; only with `is_unread` it may be destroyed.
  struct Taken {
    T* object = nullptr;
    bool is_unread = true;
  };
  Taken take(std::chrono::milliseconds limit) noexcept {
    const auto until = std::chrono::steady_clock::now() + limit;
    T* const object = object_.exchange(nullptr);
    while (object != nullptr && readers_ != 0) {
      if (std::chrono::steady_clock::now() >= until) return {object, false};
      std::this_thread::yield();
    }
    return {object, true};
  }

  /// Runs `look` on the object, if there is one.
  template <class Look>
  void read(Look look) const {
    const Reader reader(readers_);
    if (const auto* const object = object_.load()) look(*object);
  }

 private:
  // Counted before the object is looked at: whoever has taken it out sees the count, or the reader no object.
  class Reader {
   public:
    explicit Reader(std::atomic<int>& readers) : readers_(readers) { ++readers_; }
    ~Reader() { --readers_; }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    std::atomic<int>& readers_;
  };

  std::atomic<T*> object_{nullptr};
  mutable std::atomic<int> readers_{0};
};

}  // namespace ddp
