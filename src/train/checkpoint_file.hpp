#pragma once
/// checkpoint_file.hpp: a checkpoint's bytes and the file that holds them; knows nothing of what they mean.
///
/// All errors are std::runtime_error with a text that names the file; Checkpoint makes them known to all ranks.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::checkpoint {

/// Adds a checksum to a zip archive that has no comment yet. It becomes the archive's comment, so that the file
/// stays a valid one for every reader: LibTorch's does not look at zip's own checksums.
std::string seal(std::string archive);
/// Errors: `bytes` are not what seal() returned.
void verify_seal(std::string_view bytes, const std::filesystem::path& path);

/// nullopt if there is no such file, but there may be one: its folder is there.
std::optional<std::string> read(const std::filesystem::path& path);

/// Replaces the file as a whole: a reader, or this process after a kill, finds the old bytes or the new ones. On
/// return they are on the disk. After an error the old file is as it was and nothing else is left behind.
void write(const std::filesystem::path& path, std::string_view bytes);

}  // namespace ddp::checkpoint
