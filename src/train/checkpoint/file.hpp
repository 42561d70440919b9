#pragma once
/// file.hpp: the file that holds a checkpoint's bytes: sealed with a checksum, replaced as a whole; knows nothing of
/// what they mean.
///
/// All errors are std::runtime_error with a text that begins with the file's name where it is known here.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "train/checkpoint/checksum.hpp"

namespace ddp::checkpoint {

/// False for bytes without a seal. Errors: they have one, but of other bytes.
bool verify_seal(std::string_view bytes);

/// Whether its folder is there and may be written, as far as that can be known before.
bool can_be_saved(const std::filesystem::path& path);

/// nullptr if there is no such file, but there may be one: its folder is there.
std::shared_ptr<std::string> read(const std::filesystem::path& path);

/// A file beside its final place, `<path>.tmp`, that comes to it when it is complete: a reader, or this process after a
/// kill, finds the old bytes or the new ones. Without replace() nothing stays of it. Errors: another NewFile of this
/// path lives, in this process or another.
class NewFile {
 public:
  explicit NewFile(std::filesystem::path path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Bytes of a zip archive, in order. After an error, which finish() throws, the rest is let go.
  void write(std::string_view bytes) noexcept;
  /// Adds the seal, as the archive's comment: the file stays a valid one for every reader. Brings all to the disk.
  void finish();

  /// Replaces another file by a copy of the new one.
  void copy_to(const std::filesystem::path& path) const;
  /// Gives it its name. The `keep - 1` files before it get or keep the names run.1.pt (the latest), run.2.pt, ...
  void replace(int keep);

 private:
  void put(std::string_view bytes) noexcept;
  void flush_but(std::size_t held_back) noexcept;

  std::filesystem::path path_, unfinished_;
  Descriptor file_;
  std::string buffer_;  ///< its last bytes change when the seal is added
  Checksum checksum_;
  int error_ = 0;
  bool is_ours_ = false;  ///< the unfinished file, to be removed
};

/// The file that a symbolic link leads to: that one is to be replaced, not the link.
std::filesystem::path resolved(const std::filesystem::path& path);

/// run.pt with "best" is run.best.pt.
std::filesystem::path with_infix(const std::filesystem::path& path, const std::string& infix);

}  // namespace ddp::checkpoint
