#include "comm/dump_author.hpp"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>

namespace ddp::comm {
namespace {

constexpr std::chrono::seconds kReading{2};  // of one dump

constinit PinnedSlot<const DumpAuthor> current;

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string for_a_file_name(std::string text) {
  for (char& byte : text) {
    const bool is_plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                          (byte >= '0' && byte <= '9') || byte == '-' || byte == '.';
    if (!is_plain) byte = '_';
  }
  return text;
}

/// Absolute, for the program may go to another one later.
std::string folder() {
  for (const char* const name : {"DDP_DUMP_DIR", "TMPDIR"}) {
    const char* const value = std::getenv(name);
    std::error_code none;
    if (value != nullptr && *value != '\0') return std::filesystem::absolute(value, none);
  }
  return "/tmp";
}

}  // namespace

DumpAuthor author_of(Origin origin) {
  DumpAuthor author{origin, ::getpid(), host_name(), {}};
  author.path = folder() + "/ddp_rank" + std::to_string(origin.rank) + '_' + for_a_file_name(author.host) + "_pid" +
                std::to_string(author.process) + ".json";
  return author;
}

void CurrentAuthor::become(Origin origin) {
  static std::mutex changing;
  auto author = std::make_unique<const DumpAuthor>(author_of(origin));
  const std::lock_guard lock(changing);
  if (const auto now = copy(); now && now->path == author->path && now->origin.world_size == origin.world_size) return;
  const auto former = current.take(kReading);
  current.put(author.release());
  if (former.is_unread) delete former.object;
}

std::optional<DumpAuthor> CurrentAuthor::copy() {
  std::optional<DumpAuthor> copied;
  read([&](const DumpAuthor& author) { copied = author; });
  return copied;
}

PinnedSlot<const DumpAuthor>& CurrentAuthor::slot() noexcept { return current; }

bool CurrentAuthor::is_here(const DumpAuthor& author) noexcept { return author.process == ::getpid(); }

}  // namespace ddp::comm
