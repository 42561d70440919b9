#include "comm/shm_meeting.hpp"

#include <optional>
#include <stdexcept>
#include <thread>

#include "comm/shm/board.hpp"
#include "comm/shm/hand_over.hpp"
#include "comm/shm/mail.hpp"
#include "comm/shm/unavailable.hpp"

namespace ddp::comm {
namespace {

constexpr const char* kOffer = "shm/offer";  // '+' and the offer, or '-' and why there is none
constexpr const char* kVotes = "shm/votes";
constexpr const char* kAgainst = "shm/against";
constexpr std::chrono::milliseconds kPause{1};
constexpr std::chrono::seconds kTakeOverLimit{10};  // a server on this host answers within milliseconds

std::string why_key(int rank) { return "shm/why/" + std::to_string(rank); }

// What stays of one rank's side of the meeting while it lasts.
class Meeting {
 public:
  explicit Meeting(const BackendSetup& setup)
      : store_(*setup.store), rank_(setup.environment.rank), ranks_(setup.environment.world_size), setup_(setup) {}

  ShmVerdict hold() {
    std::shared_ptr<shm::Memory> memory;
    try {
      auto mapping = std::make_shared<shm::Mapping>(rank_ == 0 ? make() : take());
      memory = std::make_shared<shm::Memory>(std::move(mapping), rank_);
      if (memory->allocate(shm::Mail::bytes_for(ranks_)) != memory->mapping().region(rank_))
        throw std::logic_error("the inbox does not lie at the begin of its rank's region");
    } catch (const shm::Unavailable& error) {
      memory = nullptr;
      store_.set(why_key(rank_), std::string(error.what()));
      store_.add(kAgainst, 1);
    }
    store_.add(kVotes, 1);
    wait_for_votes();
    if (store_.add(kAgainst, 0) == 0) return {std::move(memory), {}};
    return {nullptr, reason()};
  }

 private:
  shm::Mapping make() {
    try {
      auto mapping = shm::Mapping::create(shm::Board::bytes_for(ranks_), ranks_);
      server_.emplace(mapping.file(), mapping.layout());
      store_.set(kOffer, '+' + server_->offer().text());
      return mapping;
    } catch (const shm::Unavailable& error) {
      store_.set(kOffer, std::string("-") + error.what());
      throw;
    }
  }

  shm::Mapping take() {
    const auto offer = store_.get_to_str(kOffer);
    if (!offer.starts_with('+')) throw shm::Unavailable(offer.substr(1));
    auto [file, layout] =
        shm::take_over(shm::Offer::parsed(offer.substr(1)), static_cast<std::uint32_t>(rank_), kTakeOverLimit);
    const auto needed = shm::Board::bytes_for(ranks_);
    if (layout.ranks != static_cast<std::uint32_t>(ranks_) || layout.control_bytes < needed)
      throw shm::Unavailable("rank 0's shared memory is laid out in another way; is it of another version?");
    return shm::Mapping::open(std::move(file), layout);
  }

  void wait_for_votes() {
    while (store_.add(kVotes, 0) < ranks_) {
      if (setup_.is_broken()) throw std::runtime_error("the group broke while it was being made");
      if (server_)
        server_->serve(kPause);
      else
        std::this_thread::sleep_for(kPause);
    }
  }

  std::string reason() {
    for (int rank = 0; rank < ranks_; ++rank)
      if (store_.check({why_key(rank)}))
        return "rank " + std::to_string(rank) + ": " + store_.get_to_str(why_key(rank));
    return "no rank said why";
  }

  c10d::Store& store_;
  const int rank_, ranks_;
  const BackendSetup& setup_;
  std::optional<shm::HandOverServer> server_;
};

}  // namespace

ShmVerdict share_memory(const BackendSetup& setup) {
  if (setup.environment.world_size > shm::kMostRanks)
    return {nullptr, "the group has more than " + std::to_string(shm::kMostRanks) + " ranks"};
  return Meeting(setup).hold();
}

}  // namespace ddp::comm
