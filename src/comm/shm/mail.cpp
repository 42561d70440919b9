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

bool Mail::is_expected(int from, std::uint32_t tag) {
  const std::lock_guard lock(mutex_);
  return expected_.contains({from, tag});
}

void Mail::stash_unexpected() {
  for (int from = 0; from < static_cast<int>(inboxes_.size()); ++from) {
    auto* const first = letters(from, rank_);
    for (auto* letter = first; letter < first + kLetters; ++letter) {
      auto state = letter->state.load();
      if (state == kEmpty || state == kTaken || is_expected(from, tag_of(state)) ||
          !letter->state.compare_exchange_strong(state, kTaken))
        continue;
      Piece piece;
      piece.message_bytes = letter->message_bytes;
      const auto offset = offset_of(state);
      const auto length = std::min<std::uint64_t>(piece.message_bytes - offset, kLetterBytes);
      piece.data.assign(letter->data.data(), letter->data.data() + length);
      {
        const std::lock_guard lock(mutex_);
        stash_.emplace(std::pair(from, state), std::move(piece));
      }
      empty(*letter, from);
      ring(rank_);  // who waits for it may have begun to meanwhile
    }
  }
}

std::optional<Mail::Piece> Mail::stashed(int from, std::uint64_t state) {
  const std::lock_guard lock(mutex_);
  const auto found = stash_.find({from, state});
  if (found == stash_.end()) return std::nullopt;
  auto piece = std::move(found->second);
  stash_.erase(found);
  return piece;
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
    stash_unexpected();
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
    letter->message_bytes = bytes;
    if (length > 0) std::memcpy(letter->data.data(), data + offset, length);
    letter->state.store(full(tag, offset));
    ring(to);
    offset += length;
  } while (offset < bytes);
  return true;
}

bool Mail::receive_pieces(std::byte* data, std::uint64_t bytes, int from, std::uint32_t tag, std::uint64_t& sent,
                          const Stop& stop) {
  std::uint64_t offset = 0;
  do {
    Letter* letter = nullptr;
    std::optional<Piece> piece;
    const auto state = full(tag, offset);
    const auto find = [&] { return (letter = take_full(from, state)) != nullptr || (piece = stashed(from, state)); };
    if (!wait_for(find, stop)) return false;
    sent = piece ? piece->message_bytes : letter->message_bytes;
    const auto length = std::min<std::uint64_t>(sent - offset, kLetterBytes);
    if (sent == bytes && length > 0)
      std::memcpy(data + offset, piece ? piece->data.data() : letter->data.data(), length);
    if (letter != nullptr) empty(*letter, from);
    offset += length;
  } while (offset < sent);
  return true;
}

bool Mail::receive(std::byte* data, std::uint64_t bytes, int from, std::uint32_t tag, const Stop& stop) {
  const std::pair key(from, tag);
  {
    const std::lock_guard lock(mutex_);
    expected_.insert(key);
  }
  std::uint64_t sent = 0;
  const bool has_come = receive_pieces(data, bytes, from, tag, sent, stop);
  {
    const std::lock_guard lock(mutex_);
    expected_.erase(key);
  }
  if (has_come && sent != bytes)
    throw std::length_error("a message of " + std::to_string(sent) + " bytes where " + std::to_string(bytes) +
                            " are expected");
  return has_come;
}

}  // namespace ddp::comm::shm
