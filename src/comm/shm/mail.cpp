#include "comm/shm/mail.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace ddp::comm::shm {

std::uint64_t Mail::bytes_for(int ranks) {
  return sizeof(Door) + static_cast<std::uint64_t>(ranks) * kLetters * sizeof(Letter);
}

Mail::Mail(std::vector<std::byte*> inboxes, int rank) : inboxes_(std::move(inboxes)), rank_(rank) {}

Mail::Letter* Mail::letters(int from, int to) const {
  auto* const all = reinterpret_cast<Letter*>(inboxes_[static_cast<std::size_t>(to)] + sizeof(Door));
  return all + static_cast<std::size_t>(from) * kLetters;
}

Mail::Letter* Mail::take_empty(int to) const {
  auto* const first = letters(rank_, to);
  for (auto* letter = first; letter < first + kLetters; ++letter) {
    auto expected = kEmpty;
    if (letter->state.load() == kEmpty && letter->state.compare_exchange_strong(expected, kTaken)) return letter;
  }
  return nullptr;
}

Mail::Letter* Mail::take_full(int from, std::uint64_t state) const {
  auto* const first = letters(from, rank_);
  for (auto* letter = first; letter < first + kLetters; ++letter) {
    auto expected = state;
    if (letter->state.load() == state && letter->state.compare_exchange_strong(expected, kTaken)) return letter;
  }
  return nullptr;
}

void Mail::empty(Letter& letter, int from) const {
  letter.state.store(kEmpty);
  ring(from);
}

void Mail::stash_short() {
  for (int from = 0; from < static_cast<int>(inboxes_.size()); ++from) {
    auto* const first = letters(from, rank_);
    for (auto* letter = first; letter < first + kLetters; ++letter) {
      auto state = letter->state.load();
      // Who waits for a long one takes it piece by piece, and is not to find it taken.
      if (!is_begin(state) || letter->message_bytes.load() > kLetterBytes) continue;
      if (!letter->state.compare_exchange_strong(state, kTaken)) continue;
      {
        const std::lock_guard lock(mutex_);
        stash_.emplace(std::pair(from, state),
                       std::vector(letter->data.data(), letter->data.data() + letter->message_bytes));
      }
      empty(*letter, from);
      ring(rank_);
    }
  }
}

std::optional<std::vector<std::byte>> Mail::stashed(int from, std::uint64_t state) {
  const std::lock_guard lock(mutex_);
  const auto found = stash_.find({from, state});
  if (found == stash_.end()) return std::nullopt;
  auto message = std::move(found->second);
  stash_.erase(found);
  return message;
}

void Mail::ring(int rank) const {
  auto& other = door(rank);
  if (other.sleepers.load() == 0) return;
  other.bell.fetch_add(1);
  futex_wake(other.bell);
}

// Until find() is true; in vain where stop() is, and find() then is not.
template <class Find>
bool Mail::wait_for(Find find, const Stop& stop) {
  constexpr int kYields = 50;  // some microseconds: an answer is often that near
  for (int i = 0; i < kYields; ++i) {
    if (find()) return true;
    ::sched_yield();
  }
  auto& own = door(rank_);
  for (;;) {
    const auto bell = own.bell.load();
    own.sleepers.fetch_add(1);
    stash_short();
    bool is_found = find();
    if (!is_found) futex_wait(own.bell, bell, kSlice);
    own.sleepers.fetch_sub(1);
    if (is_found || find()) return true;
    if (stop()) return find();
  }
}

bool Mail::send(const std::byte* data, std::uint64_t bytes, int to, std::uint32_t tag, const Stop& stop) {
  std::uint64_t offset = 0;
  do {
    Letter* letter = nullptr;
    if (!wait_for([&] { return (letter = take_empty(to)) != nullptr; }, stop)) return false;
    const auto length = std::min<std::uint64_t>(bytes - offset, kLetterBytes);
    letter->message_bytes.store(bytes);
    if (length > 0) std::memcpy(letter->data.data(), data + offset, length);
    letter->state.store(full(tag, offset));
    ring(to);
    offset += length;
  } while (offset < bytes);
  return true;
}

bool Mail::receive(std::byte* data, std::uint64_t bytes, int from, std::uint32_t tag, const Stop& stop) {
  std::uint64_t offset = 0, sent = 0;
  do {
    Letter* letter = nullptr;
    std::optional<std::vector<std::byte>> message;
    const auto state = full(tag, offset);
    const auto find = [&] { return (letter = take_full(from, state)) != nullptr || (message = stashed(from, state)); };
    if (!wait_for(find, stop)) return false;
    sent = message ? message->size() : letter->message_bytes.load();
    const auto length = std::min<std::uint64_t>(sent - offset, kLetterBytes);
    if (sent == bytes && length > 0)
      std::memcpy(data + offset, message ? message->data() : letter->data.data(), length);
    if (letter != nullptr) empty(*letter, from);
    offset += length;
  } while (offset < sent);
  if (sent != bytes)
    throw std::length_error("a message of " + std::to_string(sent) + " bytes where " + std::to_string(bytes) +
                            " are expected");
  return true;
}

}  // namespace ddp::comm::shm
