#pragma once
/// symbol_table.hpp: which functions a program's or library's file has at given places.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ddp {

struct Symbol {
  std::uint64_t address = 0;  // as the file counts it, which is what addr2line takes; the offset where that is unknown
  std::string name;           // of the function, mangled; empty where the file has none
};

/// For each of `offsets` into the file, in their order. Takes nothing in the file for granted; one that cannot be read
/// has no names.
std::vector<Symbol> symbols_at(const std::string& file, std::span<const std::uint64_t> offsets);

}  // namespace ddp
