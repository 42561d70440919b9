#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "comm/shm/hand_over.hpp"
#include "comm/shm/hand_over_wire.hpp"
#include "shm_child.hpp"
#include "shm_failure.hpp"
#include "support/text.hpp"

namespace ddp::comm::shm {
namespace {

using namespace std::chrono_literals;
using ddp::testing::contains;
using testing::failure_of;
using testing::kLimit;
using testing::open_descriptors;
using watch::Clock;
using watch::Descriptor;

constexpr std::uint64_t kRegion = 64 << 20;

/// Something else that listens where rank 0 should, and gives one answer with so many descriptors.
std::string failure_after(const std::string& bytes, std::size_t count) {
  const Descriptor listener = packet_socket();
  Offer offer{.name = "ddp-test-" + std::to_string(getpid()), .token = std::string(kTokenLength, 'a')};
  const auto address = abstract_address(offer.name);
  if (bind(listener.get(), address->get(), address->length) != 0 || listen(listener.get(), 1) != 0) return "bind";
  std::thread server([&] {
    pollfd entry{listener.get(), POLLIN, 0};
    watch::poll_until({&entry, 1}, Clock::now() + kLimit);
    const Descriptor client = watch::accept_from(listener).socket;
    std::string copy = bytes;
    iovec part{copy.data(), copy.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(32 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const std::vector<int> files(count, listener.get());
    if (count > 0) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
      std::memcpy(CMSG_DATA(head), files.data(), files.size() * sizeof(int));
    }
    EXPECT_EQ(sendmsg(client.get(), &message, MSG_NOSIGNAL), std::ssize(bytes));
    entry = {client.get(), POLLIN, 0};  // its request, so that closing does not overtake the answer
    watch::poll_until({&entry, 1}, Clock::now() + kLimit);
    char request[256];
    EXPECT_GT(recv(client.get(), request, sizeof request, 0), 0);
  });
  const std::string text = failure_of([&] { take_over(offer, 1, kLimit); });
  server.join();
  return text;
}

std::string answer_with(const Layout& layout) {
  const Answer answer{.magic = kMagic,
                      .version = kVersion,
                      .ranks = layout.ranks,
                      .control_bytes = layout.control_bytes,
                      .region_bytes = layout.region_bytes};
  return {reinterpret_cast<const char*>(&answer), sizeof answer};
}

TEST(TakeOver, CarriesLayoutsBeyond40BitsUnchanged) {
  const Mapping mapping = Mapping::create(1, 2, kRegion);
  const Layout huge{.control_bytes = 3 * page_bytes(), .region_bytes = std::uint64_t{1} << 40, .ranks = 1000};
  HandOverServer server(mapping.file(), huge);
  std::thread rank([&] {
    auto [file, layout] = take_over(server.offer(), 999, kLimit);
    EXPECT_EQ(layout, huge);
    EXPECT_TRUE(contains(failure_of([&] { Mapping::open(std::move(file), layout); }), "another size"));
  });
  while (server.served() == 0) server.serve(1ms);
  rank.join();
}

TEST(TakeOver, RefusesAnAnswerThatIsMalformed) {
  const auto before = open_descriptors();
  const Layout layout{.control_bytes = page_bytes(), .region_bytes = page_bytes(), .ranks = 2};
  const std::string good = answer_with(layout);
  std::string other_version = good;
  other_version[8] = 99;
  for (const std::string& bytes : {good.substr(1), good + "x", std::string("x"), other_version, "X" + good.substr(1),
                                   answer_with({.control_bytes = page_bytes(), .region_bytes = 0, .ranks = 2}),
                                   answer_with({page_bytes(), std::uint64_t{1} << 62, 4})}) {
    EXPECT_EQ(failure_after(bytes, 1), "rank 0's answer about its memory cannot be read");
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(TakeOver, RefusesAnAnswerWithoutExactlyOneDescriptor) {
  const auto before = open_descriptors();
  const std::string good = answer_with({.control_bytes = page_bytes(), .region_bytes = page_bytes(), .ranks = 2});
  EXPECT_EQ(failure_after(good, 1), "none");
  for (const std::size_t count : {0u, 2u, 3u, 30u}) {
    EXPECT_TRUE(contains(failure_after(good, count), "did not come with its answer")) << count;
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace ddp::comm::shm
