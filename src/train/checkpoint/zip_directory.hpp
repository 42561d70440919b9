#pragma once
/// zip_directory.hpp: the records of a zip archive that lies in memory; none that is compressed.
///
/// LibTorch's own reader takes memory for what an archive says of itself and inflates what is compressed, before
/// anybody can object; this one reads only what is there.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ddp::checkpoint {

class ZipDirectory {
 public:
  /// `bytes` must outlive this. `verifies`: compares each record that is read with its checksum, where the archive
  /// gives one. Errors: std::runtime_error for what is no such archive.
  ZipDirectory(std::string_view bytes, bool verifies);

  /// A record by its name below the archive's folder.
  bool has(const std::string& name) const { return entries_.contains(name); }
  /// Errors: std::runtime_error for a record that is not there, lies outside of the archive or is damaged.
  std::string_view record(const std::string& name) const;

 private:
  struct Entry {
    std::uint64_t header = 0;
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
    bool is_compressed = false;
  };
  struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };
  Extent find_entries() const;
  std::uint64_t read_entry(std::uint64_t offset);

  std::string_view bytes_;
  bool verifies_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace ddp::checkpoint
