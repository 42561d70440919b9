#include "base/symbol_table.hpp"

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace ddp {
namespace {

class SymbolTable : public testing::Test {
 protected:
  ~SymbolTable() override { ::close(file_); }
  std::string name_in(const std::string& bytes, std::uint64_t offset = 0x2010) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return symbols_at(path_, std::vector{offset})[0].name;
  }
  /// The least program: code at offset 0x2000 that is loaded at 0x402000, where `inner` has 32 bytes at 0x402000.
  static std::string program(Elf64_Word kind = SHT_SYMTAB) {
    Elf64_Ehdr header{};
    std::copy_n(ELFMAG, SELFMAG, header.e_ident);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_phoff = sizeof header;
    header.e_phnum = 1;
    header.e_shoff = header.e_phoff + sizeof(Elf64_Phdr);
    header.e_shnum = 2;
    Elf64_Phdr code{};
    code.p_type = PT_LOAD;
    code.p_offset = 0x2000;
    code.p_vaddr = 0x402000;
    code.p_filesz = 0x100;
    const std::string text("\0inner\0__inner\0", 15);
    Elf64_Shdr table{}, names{};
    table.sh_type = kind;
    table.sh_link = 1;
    table.sh_offset = header.e_shoff + 2 * sizeof table;
    table.sh_size = 3 * sizeof(Elf64_Sym);
    names.sh_type = SHT_STRTAB;
    names.sh_offset = table.sh_offset + table.sh_size;
    names.sh_size = text.size();
    const Elf64_Sym alias{7, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, 0x402000, 32};
    const Elf64_Sym inner{1, ELF64_ST_INFO(STB_LOCAL, STT_FUNC), 0, 1, 0x402000, 32};
    const Elf64_Sym data{7, ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), 0, 1, 0x402040, 32};
    return bytes(header) + bytes(code) + bytes(table) + bytes(names) + bytes(alias) + bytes(inner) + bytes(data) + text;
  }
  template <class T>
  static std::string bytes(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  const int file_ = ::memfd_create("symbol_table", MFD_CLOEXEC);
  const std::string path_ = "/proc/self/fd/" + std::to_string(file_);
};

TEST_F(SymbolTable, AFunctionIsFoundUnderItsShortestName) {
  EXPECT_EQ(name_in(program(), 0x2000), "inner");
  EXPECT_EQ(name_in(program(), 0x201f), "inner");
  EXPECT_EQ(name_in(program(), 0x2020), "");
  EXPECT_EQ(name_in(program(), 0x2040), "");  // data
  EXPECT_EQ(name_in(program(SHT_DYNSYM)), "inner");
}

TEST_F(SymbolTable, AddressesAreTheFilesOwn) {
  name_in(program());
  const auto symbols = symbols_at(path_, std::vector<std::uint64_t>{0x2010, 0x50, 0x2000});
  ASSERT_EQ(symbols.size(), 3u);
  EXPECT_EQ(symbols[0].address, 0x402010u);
  EXPECT_EQ(symbols[1].address, 0x50u);  // not loaded
  EXPECT_EQ(symbols[2].address, 0x402000u);
  EXPECT_EQ(symbols[2].name, "inner");
}

TEST_F(SymbolTable, AStrippedFileHasNoNames) { EXPECT_EQ(name_in(program(SHT_PROGBITS)), ""); }

TEST_F(SymbolTable, NoPartOfAFileCrashesTheReader) {
  const auto whole = program();
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_NE(name_in(whole.substr(0, size)), "__inner");
  for (std::size_t at = SELFMAG; at < whole.size(); ++at) {
    auto changed = whole;
    changed[at] = static_cast<char>(0xff);
    EXPECT_LT(name_in(changed).size(), 20u) << at;
  }
}

TEST_F(SymbolTable, WhatIsNoProgramHasNoNames) {
  EXPECT_EQ(name_in("#!/bin/sh\n"), "");
  const auto fifo = testing::TempDir() + "symbol_table_" + std::to_string(getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);  // whoever opens it waits for a writer
  for (const std::string& path : {std::string("/"), std::string("/dev/zero"), std::string("/does/not/exist"), fifo}) {
    const auto symbols = symbols_at(path, std::vector<std::uint64_t>{0x10});
    ASSERT_EQ(symbols.size(), 1u) << path;
    EXPECT_EQ(symbols[0].name, "") << path;
    EXPECT_EQ(symbols[0].address, 0x10u) << path;
  }
  ::unlink(fifo.c_str());
}

}  // namespace
}  // namespace ddp
