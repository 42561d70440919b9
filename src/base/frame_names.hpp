#pragma once
/// frame_names.hpp: names for addresses of code in this process.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ddp {

/// A line for each address: "train(Batch&) in program(+0x1234)", "program(+0x1234)" where the file has no name for it,
/// "0x7f0012345678" outside of all files. `addr2line -e program 0x1234` gives the source line.
///
/// Reads /proc/self/maps and the files' own symbol tables, so that functions which are not exported have names too, and
/// takes none of the dynamic loader's locks, which a thread that hangs in dlopen() holds. It does read files.
std::vector<std::string> frame_names(std::span<const std::uintptr_t> addresses);

/// A mangled name as a person reads it, at most 120 characters: where it is longer, arguments of templates become
/// <...>, then those of functions (...), then the end is cut off.
std::string readable_name(const std::string& mangled);

}  // namespace ddp
