// Whoever sleeps over shared memory is woken by what it waits for.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "comm/shm/board.hpp"
#include "comm/shm/mail.hpp"
#include "comm/shm/mapping.hpp"
#include "shm_threads.hpp"

namespace ddp::comm::shm {
namespace {

using testing::Threads;

constexpr std::uint64_t kRegion = std::uint64_t{64} << 20;
bool never() { return false; }

/// Waits for somebody who comes late. A wake-up ends them within microseconds; without one they take as long as a
/// sleep's slice.
class Waits {
 public:
  static constexpr int kCount = 60;
  ~Waits() { EXPECT_GT(quick_, kCount / 2); }

  /// Called by who is late, before it does what the `index`-th wait is for: the other one should sleep by then. Whether
  /// it does changes no result.
  void come_late(std::uint64_t index) const {
    while (begun_ <= index) std::this_thread::yield();
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
  template <class Wait>
  void time(Wait wait) {
    const auto start = std::chrono::steady_clock::now();
    ++begun_;
    EXPECT_TRUE(wait());
    quick_ += std::chrono::steady_clock::now() - start < std::chrono::milliseconds(8);
  }

 private:
  std::atomic<std::uint64_t> begun_{0};
  int quick_ = 0;
};

// Rank 0 waits, rank 1 is late.
void on_two_boards(const std::function<void(Board&, Waits&)>& first,
                   const std::function<void(Board&, const Waits&)>& second) {
  const auto mapping = Mapping::create(Board::bytes_for(2), 2, kRegion);
  Waits waits;
  Threads threads;
  threads.start([&] {
    Board board(mapping.data(), 0, 2, {});
    first(board, waits);
  });
  threads.start([&] {
    Board board(mapping.data(), 1, 2, {});
    second(board, waits);
  });
  threads.join();
}

TEST(Board, WakesWhoWaitsForTheOthersToEnter) {
  on_two_boards(
      [](Board& board, Waits& waits) {
        for (int round = 0; round < Waits::kCount; ++round) {
          const auto call = board.enter();
          waits.time([&] { return board.wait([&] { return board.has_all(call); }, never); });
          board.leave(call);
        }
      },
      [](Board& board, const Waits& waits) {
        for (std::uint64_t call = 0; call < Waits::kCount; ++call) {
          while (!board.has_room()) std::this_thread::yield();
          waits.come_late(call);
          board.enter();
          board.leave(call);
        }
      });
}

TEST(Board, WakesWhoWaitsForTheOthersChunks) {
  on_two_boards(
      [](Board& board, Waits& waits) {
        for (int round = 0; round < Waits::kCount; ++round) {
          board.prepare_chunks(1);
          const auto call = board.enter();
          while (!board.has_all(call)) std::this_thread::yield();
          waits.time([&] { return board.wait([&] { return board.is_done(call, 1); }, never); });
          board.leave(call);
        }
      },
      [](Board& board, const Waits& waits) {
        for (std::uint64_t round = 0; round < Waits::kCount; ++round) {
          while (!board.has_room()) std::this_thread::yield();
          board.prepare_chunks(1);
          const auto call = board.enter();
          while (!board.has_all(call)) std::this_thread::yield();
          EXPECT_EQ(board.claim(call, 1), 0U);
          waits.come_late(round);
          board.finish_chunk(call, 1);
          board.leave(call);
        }
      });
}

// Rank 0 is always as far ahead as it can be.
TEST(Board, WakesWhoWaitsForRoom) {
  on_two_boards(
      [](Board& board, Waits& waits) {
        for (std::uint64_t call = 0; call < Waits::kCount + kSlots; ++call) {
          const auto wait = [&] { return board.wait([&] { return board.has_room(); }, never); };
          if (call < kSlots)
            EXPECT_TRUE(wait());
          else
            waits.time(wait);
          board.enter();
          board.leave(call);
        }
      },
      [](Board& board, const Waits& waits) {
        for (std::uint64_t call = 0; call < Waits::kCount; ++call) board.enter();  // that would wake it too
        for (std::uint64_t call = 0; call < Waits::kCount; ++call) {
          waits.come_late(call);
          board.leave(call);
        }
      });
}

void on_two_mails(const std::function<void(Mail&, Waits&)>& first,
                  const std::function<void(Mail&, const Waits&)>& second) {
  const auto mapping = Mapping::create(4096, 2, kRegion);
  const std::vector<std::byte*> inboxes{mapping.region(0), mapping.region(1)};
  Waits waits;
  Threads threads;
  Mail one(inboxes, 0), other(inboxes, 1);
  threads.start([&] { first(one, waits); });
  threads.start([&] { second(other, waits); });
  threads.join();
}

// Each message is asked for, so that whoever waits for it waits for it alone.
TEST(Mail, WakesWhoWaitsForAMessage) {
  on_two_mails(
      [](Mail& mail, Waits& waits) {
        std::byte data[8]{};
        for (std::uint32_t tag = 0; tag < Waits::kCount; ++tag) {
          EXPECT_TRUE(mail.send(data, 8, 1, tag, never));
          waits.time([&] { return mail.receive(data, 8, 1, tag, never); });
        }
      },
      [](Mail& mail, const Waits& waits) {
        std::byte data[8]{};
        for (std::uint32_t tag = 0; tag < Waits::kCount; ++tag) {
          EXPECT_TRUE(mail.receive(data, 8, 0, tag, never));
          waits.come_late(tag);
          EXPECT_TRUE(mail.send(data, 8, 0, tag, never));
        }
      });
}

// Five letters' worth where there are four.
TEST(Mail, WakesWhoWaitsForALetter) {
  constexpr std::uint64_t bytes = 5 * Mail::kLetterBytes;
  on_two_mails(
      [](Mail& mail, Waits& waits) {
        std::vector<std::byte> data(bytes);
        for (std::uint32_t tag = 0; tag < Waits::kCount; ++tag) {
          waits.time([&] { return mail.send(data.data(), bytes, 1, tag, never); });
          EXPECT_TRUE(mail.receive(data.data(), 1, 1, tag, never));
        }
      },
      [](Mail& mail, const Waits& waits) {
        std::vector<std::byte> data(bytes);
        for (std::uint32_t tag = 0; tag < Waits::kCount; ++tag) {
          waits.come_late(tag);
          EXPECT_TRUE(mail.receive(data.data(), bytes, 0, tag, never));
          EXPECT_TRUE(mail.send(data.data(), 1, 0, tag, never));
        }
      });
}

}  // namespace
}  // namespace ddp::comm::shm
