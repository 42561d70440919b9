#include "base/symbol_table.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace ddp {
namespace {

constexpr std::size_t kSymbolsARead = 4096;  // 96 KB: large libraries have some 100,000 symbols
constexpr std::size_t kLongestName = 16384;  // of templates; the longest of LibTorch has about 3,000 characters

/// The file of a program for this machine's word size.
class ElfFile {
 public:
  explicit ElfFile(const std::string& path) {
    std::error_code none;
    if (std::filesystem::is_regular_file(path, none)) file_.open(path, std::ios::binary);  // code may map a device
    valid_ = read(0, &header_, 1) && std::memcmp(header_.e_ident, ELFMAG, SELFMAG) == 0 &&
             header_.e_ident[EI_CLASS] == ELFCLASS64;
  }

  std::uint64_t address_of(std::uint64_t offset) {
    for (const auto& segment : headers<Elf64_Phdr>(header_.e_phoff, header_.e_phnum)) {
      if (segment.p_type == PT_LOAD && offset >= segment.p_offset && offset - segment.p_offset < segment.p_filesz)
        return offset - segment.p_offset + segment.p_vaddr;
    }
    return offset;
  }

  /// The table of all functions, or where that has been stripped the one of the exported ones.
  void name(std::span<Symbol> wanted) {
    const auto sections = headers<Elf64_Shdr>(header_.e_shoff, header_.e_shnum);
    for (const auto type : {SHT_SYMTAB, SHT_DYNSYM}) {
      const auto table = std::ranges::find(sections, static_cast<Elf64_Word>(type), &Elf64_Shdr::sh_type);
      if (table == sections.end() || table->sh_link >= sections.size()) continue;
      search(*table, sections[table->sh_link], wanted);
      return;
    }
  }

 private:
  template <class T>
  bool read(std::uint64_t offset, T* into, std::size_t count) {
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(offset));
    const auto bytes = static_cast<std::streamsize>(count * sizeof(T));
    return file_.read(reinterpret_cast<char*>(into), bytes).gcount() == bytes;
  }

  template <class T>
  std::vector<T> headers(std::uint64_t offset, std::uint64_t count) {
    std::vector<T> all(valid_ ? count : 0);
    if (!read(offset, all.data(), all.size())) all.clear();
    return all;
  }

  void search(const Elf64_Shdr& table, const Elf64_Shdr& names, std::span<Symbol> wanted) {
    std::vector<Elf64_Sym> some(kSymbolsARead);
    for (std::uint64_t done = 0, all = table.sh_size / sizeof(Elf64_Sym); done < all; done += some.size()) {
      some.resize(std::min<std::uint64_t>(some.size(), all - done));
      if (!read(table.sh_offset + done * sizeof(Elf64_Sym), some.data(), some.size())) return;
      for (const auto& symbol : some) {
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF) match(symbol, names, wanted);
      }
    }
  }

  /// A function may have several names (read, __read, __libc_read): the shortest is the known one.
  void match(const Elf64_Sym& symbol, const Elf64_Shdr& names, std::span<Symbol> wanted) {
    for (auto& each : wanted) {
      if (each.address < symbol.st_value || each.address - symbol.st_value >= symbol.st_size) continue;
      const auto name = text_at(names, symbol.st_name);
      if (each.name.empty() || (!name.empty() && name.size() < each.name.size())) each.name = name;
    }
  }

  std::string text_at(const Elf64_Shdr& names, std::uint64_t offset) {
    if (offset >= names.sh_size) return {};
    std::string text(kLongestName, '\0');
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(names.sh_offset + offset));
    file_.get(text.data(), static_cast<std::streamsize>(text.size()), '\0');
    text.resize(static_cast<std::size_t>(file_.gcount()));
    return text;
  }

  std::ifstream file_;
  Elf64_Ehdr header_{};
  bool valid_ = false;
};

}  // namespace

std::vector<Symbol> symbols_at(const std::string& file, std::span<const std::uint64_t> offsets) {
  ElfFile elf(file);
  std::vector<Symbol> symbols;
  symbols.reserve(offsets.size());
  for (const auto offset : offsets) symbols.push_back({elf.address_of(offset), {}});
  elf.name(symbols);
  return symbols;
}

}  // namespace ddp
