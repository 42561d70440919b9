// Everything at once over shared memory: several groups, calls of every kind that are entered by one thread and run by
// another, messages beside them, ranks that dawdle; more threads than cores. Every result is checked.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "comm/shm/mail.hpp"
#include "comm/shm/mapping.hpp"
#include "comm/shm/transfers.hpp"
#include "shm_threads.hpp"

namespace ddp::comm::shm {
namespace {

using testing::Threads;

constexpr std::uint64_t kRegion = std::uint64_t{64} << 20;
constexpr std::uint64_t kInbox = std::uint64_t{4} << 20;  // in front of the data of a rank's region
constexpr std::uint64_t kArea = 256 * 1024;               // of a call's data; as many as calls are under way
constexpr std::uint32_t kCalls = 160, kMessages = 60;
bool never() { return false; }

/// Lets others have the core at some of the places where it is asked.
class Dawdler {
 public:
  explicit Dawdler(std::uint32_t seed) : random_(seed) {}
  void operator()() {
    if (random_() % 8 == 0)
      for (auto times = random_() % 8; times > 0; --times) std::this_thread::yield();
  }

 private:
  std::mt19937 random_;
};

enum class Sort : std::uint32_t { meet, in_entry, in_place, staged, few_bytes, many_bytes };

/// What all ranks of a group do, the same on each.
struct Plan {
  Sort sort = Sort::meet;
  std::uint32_t count = 0;  ///< of elements
};

struct Message {
  int from = 0, to = 0;
  std::uint32_t tag = 0, bytes = 0;
};

struct Group {
  Group(int size, std::uint32_t seed)
      : ranks(size), mapping(Mapping::create(Board::bytes_for(size), size, kRegion)), random(seed) {
    for (std::uint32_t n = 0; n < kCalls; ++n) {
      const auto sort = static_cast<Sort>(random() % 6);
      const auto most = sort == Sort::in_entry || sort == Sort::few_bytes ? 200U : n % 20 == 0 ? 60000U : 6000U;
      plans.push_back({sort, 1 + static_cast<std::uint32_t>(random() % most)});
    }
    for (std::uint32_t tag = 0; tag < kMessages; ++tag) {
      const auto from = static_cast<int>(random()) & 0xFF;
      const auto bytes = static_cast<std::uint32_t>(random() % (tag % 10 == 0 ? 600'000 : 3000));
      messages.push_back({from % size, (from + 1 + static_cast<int>(random() % 16) % (size - 1)) % size, tag, bytes});
    }
    for (int rank = 0; rank < size; ++rank) inboxes.push_back(mapping.region(rank));
  }

  const int ranks;
  const Mapping mapping;
  std::mt19937 random;
  std::vector<Plan> plans;
  std::vector<Message> messages;
  std::vector<std::byte*> inboxes;
};

std::uint32_t value_of(int rank, std::uint32_t call, std::size_t i) {
  return static_cast<std::uint32_t>(rank + 1) * 1000003U + call * 7919U + static_cast<std::uint32_t>(i % 4099);
}

class Member {
 public:
  Member(Group& group, int rank, Patience patience)
      : group_(group),
        rank_(rank),
        board_(group.mapping.data(), rank, group.ranks, patience),
        transfers_(board_, group.mapping.data()),
        calls_(group.plans.size()) {}

  void enter_all(std::uint32_t seed) {
    Dawdler dawdle(seed);
    for (std::uint32_t n = 0; n < group_.plans.size(); ++n) {
      while (n >= checked_ + kSlots || !board_.has_room()) std::this_thread::yield();
      prepare(n);
      dawdle();
      transfers_.enter(calls_[n].call);
      entered_ = n + 1;
      dawdle();
    }
  }

  void run_all(std::uint32_t seed) {
    Dawdler dawdle(seed);
    for (std::uint32_t n = 0; n < group_.plans.size(); ++n) {
      while (entered_ <= n) std::this_thread::yield();
      dawdle();
      ASSERT_TRUE(transfers_.run(calls_[n].call, never));
      EXPECT_EQ(calls_[n].call.trouble, "");
      EXPECT_EQ(wrong_in(n), 0U) << "call " << n << " of sort " << static_cast<int>(group_.plans[n].sort) << " at rank "
                                 << rank_ << " of " << group_.ranks;
      checked_ = n + 1;
    }
  }

 private:
  struct Made {
    Call call;
    std::vector<std::uint32_t> own, taken;
    std::uint32_t* data = nullptr;
  };

  void prepare(std::uint32_t n) {
    const auto [sort, count] = group_.plans[n];
    auto& made = calls_[n];
    if (sort == Sort::meet) return;
    made.own.resize(count);
    made.data = made.own.data();
    if (sort == Sort::in_place)
      made.data = reinterpret_cast<std::uint32_t*>(group_.mapping.region(rank_) + kInbox + n % kSlots * kArea);
    for (std::size_t i = 0; i < count; ++i) made.data[i] = value_of(rank_, n, i);
    const auto bytes = count * sizeof(std::uint32_t);
    if (sort == Sort::few_bytes || sort == Sort::many_bytes) return prepare_move(made, bytes);
    made.call.terms = {Kind::reduce, Type::int32, Combine::sum, bytes};
    made.call.data = reinterpret_cast<std::byte*>(made.data);
    made.call.is_shared = sort == Sort::in_place;
  }

  void prepare_move(Made& made, std::uint64_t bytes) const {
    const auto count = made.own.size();
    made.taken.resize(count * static_cast<std::size_t>(group_.ranks));
    made.call.terms.kind = Kind::move;
    made.call.stream = reinterpret_cast<const std::byte*>(made.data);
    made.call.stream_bytes = bytes;
    for (int other = 0; other < group_.ranks; ++other) {
      auto* const target = made.taken.data() + static_cast<std::size_t>(other) * count;
      made.call.parts.push_back({0, bytes});
      made.call.targets.push_back({reinterpret_cast<std::byte*>(target), bytes});
    }
  }

  std::size_t wrong_in(std::uint32_t n) const {
    const auto [sort, count] = group_.plans[n];
    const auto& made = calls_[n];
    std::size_t wrong = 0;
    if (sort == Sort::meet) return wrong;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t sum = 0;
      for (int other = 0; other < group_.ranks; ++other) {
        sum += value_of(other, n, i);
        if (!made.taken.empty())
          wrong += made.taken[static_cast<std::size_t>(other) * count + i] != value_of(other, n, i);
      }
      if (made.taken.empty()) wrong += made.data[i] != sum;
    }
    return wrong;
  }

  Group& group_;
  const int rank_;
  Board board_;
  Transfers transfers_;
  std::vector<Made> calls_;
  std::atomic<std::uint32_t> entered_{0}, checked_{0};
};

void send_all(const Group& group, Mail& mail, int rank) {
  Dawdler dawdle(static_cast<std::uint32_t>(rank));
  for (const auto& message : group.messages) {
    if (message.from != rank) continue;
    std::vector<std::byte> data(message.bytes);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(message.tag * 31 + i / 7);
    dawdle();
    EXPECT_TRUE(mail.send(data.data(), data.size(), message.to, message.tag, never));
  }
}

// Every second one of a rank's, in an order of its own.
void receive_half(const Group& group, Mail& mail, int rank, std::uint32_t half) {
  auto messages = group.messages;
  std::mt19937 random(half);
  Dawdler dawdle(half);
  std::shuffle(messages.begin(), messages.end(), random);
  for (const auto& message : messages) {
    if (message.to != rank || message.tag % 2 != half) continue;
    std::vector<std::byte> data(message.bytes);
    dawdle();
    EXPECT_TRUE(mail.receive(data.data(), data.size(), message.from, message.tag, never));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < data.size(); ++i) wrong += data[i] != static_cast<std::byte>(message.tag * 31 + i / 7);
    EXPECT_EQ(wrong, 0U) << "message " << message.tag << " of " << message.bytes << " bytes";
  }
}

TEST(Stress, CallsAndMessagesOfSeveralGroupsAtOnceAreRight) {
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::unique_ptr<Member>> members;
  std::vector<std::unique_ptr<Mail>> mails;
  const Patience patiences[] = {{}, {.spins = 10, .yields = 5}, {.spins = 200, .yields = 20}};
  Threads threads;
  std::uint32_t seed = 0;
  for (const int ranks : {2, 3, 5}) {
    auto& group = *groups.emplace_back(std::make_unique<Group>(ranks, ++seed));
    for (int rank = 0; rank < ranks; ++rank) {
      auto& member = *members.emplace_back(std::make_unique<Member>(group, rank, patiences[++seed % 3]));
      auto& mail = *mails.emplace_back(std::make_unique<Mail>(group.inboxes, rank));
      threads.start([&member, seed] { member.enter_all(seed); });
      threads.start([&member, seed] { member.run_all(seed + 1000); });
      threads.start([&group, &mail, rank] { send_all(group, mail, rank); });
      for (const std::uint32_t half : {0U, 1U})
        threads.start([&group, &mail, rank, half] { receive_half(group, mail, rank, half); });
    }
  }
}

// A long message that is not received yet has a place for each of its letters and more.
TEST(Mail, IsHeldUpByNoOtherMessage) {
  const auto mapping = Mapping::create(4096, 2, kRegion);
  const std::vector<std::byte*> inboxes{mapping.region(0), mapping.region(1)};
  Mail sender(inboxes, 0), receiver(inboxes, 1);
  const std::vector<std::byte> sent(9 * Mail::kLetterBytes + 1, std::byte{7});
  std::vector<std::byte> received(sent.size());
  std::atomic<bool> has_come{false};
  const auto patience = [asked = 0]() mutable { return ++asked == 300; };
  Threads threads;
  threads.start([&] { EXPECT_TRUE(sender.send(sent.data(), sent.size(), 1, 1, never)); });
  threads.start([&] { EXPECT_TRUE(sender.send(sent.data(), 5, 1, 2, [&] { return has_come.load(); })); });
  EXPECT_TRUE(receiver.receive(received.data(), 5, 0, 2, patience));
  has_come = true;
  EXPECT_TRUE(receiver.receive(received.data(), received.size(), 0, 1, never));
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace ddp::comm::shm
