#include "elf_symbols.hpp"

#include <elf.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "freeride/plugin.h"

namespace freeride::runner {
namespace {

// More than anybody reads; a table may claim millions, with names of kilobytes.
constexpr size_t kMostNamed = 10'000;

template <class T>
bool read_at(std::string_view bytes, uint64_t offset, T& out) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(&out, bytes.data() + offset, sizeof(T));
  return true;
}

std::string text_at(std::string_view bytes, uint64_t offset) {
  if (offset >= bytes.size()) return {};
  const auto rest = bytes.substr(offset, 4096);
  return std::string(rest.substr(0, rest.find('\0')));
}

/// What the plugin takes from the standard library's templates: exported whatever -fvisibility says, and harmless: a
/// process has one plugin.
bool of_std_template(const Elf64_Sym& symbol, std::string_view name) {
  return ELF64_ST_BIND(symbol.st_info) == STB_WEAK &&
         (name.starts_with("_ZNSt") || name.starts_with("_ZNKSt") || name.starts_with("_ZSt") ||
          name.starts_with("_ZNK9__gnu_cxx") || name.starts_with("_ZN9__gnu_cxx"));
}

}  // namespace

Result<Exports> read_exports(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_error("cannot read " + path, errno);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const std::string_view bytes(content);
  Exports exports;
  Elf64_Ehdr header{};
  if (!read_at(bytes, 0, header)) return exports;
  bool looked = false;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section{};
    Elf64_Shdr strings{};
    if (!read_at(bytes, header.e_shoff + i * header.e_shentsize, section)) break;
    if (section.sh_type != SHT_DYNSYM || std::exchange(looked, true)) continue;
    if (!read_at(bytes, header.e_shoff + uint64_t{section.sh_link} * header.e_shentsize, strings)) break;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size && exports.others.size() < kMostNamed;
         at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol{};
      if (!read_at(bytes, section.sh_offset + at, symbol)) break;
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx == SHN_ABS) continue;
      std::string name = text_at(bytes, strings.sh_offset + symbol.st_name);
      if (name.empty() || name == FREERIDE_PLUGIN_ENTRY || of_std_template(symbol, name)) continue;
      if (ELF64_ST_BIND(symbol.st_info) == STB_GNU_UNIQUE) exports.unique.push_back(name);
      exports.others.push_back(std::move(name));
    }
  }
  return exports;
}

}  // namespace freeride::runner
