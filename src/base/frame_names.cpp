#include "base/frame_names.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/symbol_table.hpp"

namespace ddp {
namespace {

constexpr std::size_t kLongestName = 120;      // with a file's name still one line of a wide terminal
constexpr std::size_t kLongestMangled = 8192;  // the demangler's time and stack grow with it

/// A line of /proc/self/maps: code that comes from a file.
struct Mapping {
  std::uintptr_t begin = 0, end = 0;
  std::uint64_t offset = 0;  // of `begin` in the file
  std::string file;          // "[vdso]" is none; ends in " (deleted)" where the file has been replaced
};

std::vector<Mapping> code_mappings() {
  std::vector<Mapping> mappings;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    Mapping mapping;
    char dash = 0;
    std::string rights, device, inode;
    fields >> std::hex >> mapping.begin >> dash >> mapping.end >> rights >> mapping.offset >> device >> inode >>
        std::ws;
    std::getline(fields, mapping.file);
    if (rights.find('x') != std::string::npos && !mapping.file.empty()) mappings.push_back(std::move(mapping));
  }
  return mappings;
}

/// Through /proc the program is still there when it has been built anew since its start.
std::string openable(const std::string& file) {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none) == file ? "/proc/self/exe" : file;
}

std::string last_part(const std::string& file) { return file.substr(file.rfind('/') + 1).substr(0, kLongestName / 2); }

std::string with_digits(std::uint64_t number) {
  std::ostringstream text;
  text << "0x" << std::hex << number;
  return text.str();
}

/// The lines of those addresses that lie in `mapping`.
void name_those_in(const Mapping& mapping, std::span<const std::uintptr_t> addresses, std::vector<std::string>& lines) {
  std::vector<std::size_t> mine;
  std::vector<std::uint64_t> offsets;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i] < mapping.begin || addresses[i] >= mapping.end) continue;
    mine.push_back(i);
    offsets.push_back(addresses[i] - mapping.begin + mapping.offset);
  }
  if (mine.empty()) return;
  const auto symbols = symbols_at(openable(mapping.file), offsets);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto place = last_part(mapping.file) + "(+" + with_digits(symbols[i].address) + ")";
    lines[mine[i]] = symbols[i].name.empty() ? place : readable_name(symbols[i].name) + " in " + place;
  }
}

/// Whether a `<` or `>` there belongs to the name of an operator.
bool is_operator(std::string_view text, std::size_t at) {
  constexpr std::string_view word = "operator";
  while (at > 0 && std::string_view("<>-=").find(text[at - 1]) != std::string_view::npos) --at;
  return at >= word.size() && text.substr(at - word.size(), word.size()) == word;
}

/// What stands between the outermost `open` and `close` becomes "..."; "(anonymous namespace)" stays.
std::string without_inner(std::string_view text, char open, char close) {
  constexpr std::string_view anonymous = "(anonymous namespace)";
  std::string result;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (depth == 0 && text.substr(i, anonymous.size()) == anonymous) {
      result += anonymous;
      i += anonymous.size() - 1;
      continue;
    }
    const bool bracket = !is_operator(text, i);
    if (bracket && text[i] == close && --depth == 0 && text[i - 1] != open) result += "...";
    if (depth == 0) result += text[i];
    if (bracket && text[i] == open) ++depth;
  }
  return depth == 0 ? result : std::string(text);
}

}  // namespace

std::string readable_name(const std::string& mangled) {
  int failed = 0;
  const auto free = [](char* text) { std::free(text); };
  const std::unique_ptr<char, decltype(free)> demangled(
      mangled.size() > kLongestMangled ? nullptr : abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &failed),
      free);
  std::string name = demangled == nullptr ? mangled : demangled.get();
  if (name.size() > kLongestName) name = without_inner(name, '<', '>');
  if (name.size() > kLongestName) name = without_inner(name, '(', ')');
  if (name.size() > kLongestName) name = name.substr(0, kLongestName - 3) + "...";
  return name;
}

std::vector<std::string> frame_names(std::span<const std::uintptr_t> addresses) {
  std::vector<std::string> lines;
  lines.reserve(addresses.size());
  for (const auto address : addresses) lines.push_back(with_digits(address));
  for (const auto& mapping : code_mappings()) name_those_in(mapping, addresses, lines);
  return lines;
}

}  // namespace ddp
