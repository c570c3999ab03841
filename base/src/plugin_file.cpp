#include "freeride/base/plugin_file.hpp"

#include <elf.h>

#include <cstring>
#include <utility>

namespace freeride {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kMachineName = "aarch64";
#else
#error "name this machine's ELF number"
#endif

constexpr std::string_view kEntry = "freeride_plugin_v1";
constexpr std::string_view kEntryPrefix = "freeride_plugin_v";

Error invalid(const std::string& name, const std::string& what, std::string hint) {
  return Error{Code::kInvalidArgument, name + " " + what, std::move(hint)};
}

// Copies a T out of `bytes` at `offset`; false when it would reach past the end.
template <class T>
bool read_at(std::string_view bytes, uint64_t offset, T& out) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(&out, bytes.data() + offset, sizeof(T));
  return true;
}

// The NUL-terminated text at `offset`, empty when there is none inside `bytes`.
std::string_view text_at(std::string_view bytes, uint64_t offset) {
  if (offset >= bytes.size()) return {};
  auto rest = bytes.substr(offset, 256);
  auto end = rest.find('\0');
  return end == std::string_view::npos ? std::string_view{} : rest.substr(0, end);
}

Status check_script(std::string_view bytes, const std::string& name) {
  constexpr const char* kHint = "write a class that inherits freeride_plugin.SideTask (docs/authors/python.md)";
  if (bytes.size() > kMaxScriptBytes)
    return Error{Code::kExhausted, name + " is larger than " + std::to_string(kMaxScriptBytes >> 20) + " MiB", kHint};
  if (bytes.find('\0') != std::string_view::npos) return invalid(name, "is no Python text", kHint);
  // A batch's process(items) is enough.
  if (bytes.find("freeride_plugin") == std::string_view::npos && bytes.find("def process(") == std::string_view::npos)
    return invalid(name, "does not import freeride_plugin", kHint);
  return {};
}

}  // namespace

const char* plugin_extension(std::string_view bytes) {
  return bytes.substr(0, SELFMAG) == ELFMAG ? ".so" : ".py";
}

Status check_plugin_file(std::string_view bytes, const std::string& name) {
  constexpr const char* kBuildHint = "build it with freeride_add_plugin() or g++ -shared -fPIC (docs/authors/index.md)";
  if (bytes.empty()) return invalid(name, "is empty", kBuildHint);
  if (is_script_name(name)) return check_script(bytes, name);
  if (bytes.size() > kMaxPluginBytes) {
    return Error{Code::kExhausted, name + " is larger than " + std::to_string(kMaxPluginBytes >> 20) + " MiB",
                 "strip it, or link large libraries dynamically"};
  }
  Elf64_Ehdr header{};
  if (!read_at(bytes, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return invalid(name, "is not an ELF file", kBuildHint);
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachine) {
    return invalid(name, "was built for another machine (ELF machine " + std::to_string(header.e_machine) + ")",
                   std::string("rebuild it for ") + kMachineName);
  }
  if (header.e_type != ET_DYN) return invalid(name, "is not a shared object", kBuildHint);

  std::string_view other_version;
  bool looked = false, found = false;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section{};
    if (!read_at(bytes, header.e_shoff + i * header.e_shentsize, section))
      return invalid(name, "is truncated", kBuildHint);
    if (section.sh_type != SHT_DYNSYM) continue;
    if (std::exchange(looked, true)) return invalid(name, "has more than one table of dynamic symbols", kBuildHint);
    if (section.sh_size / sizeof(Elf64_Sym) > kMaxPluginSymbols) {
      return Error{Code::kExhausted,
                   name + " says that it has more than " + std::to_string(kMaxPluginSymbols) + " dynamic symbols",
                   "export the entry alone: -fvisibility=hidden"};
    }
    Elf64_Shdr strings{};
    if (!read_at(bytes, header.e_shoff + uint64_t{section.sh_link} * header.e_shentsize, strings)) {
      return invalid(name, "is truncated", kBuildHint);
    }
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol{};
      if (!read_at(bytes, section.sh_offset + at, symbol)) return invalid(name, "is truncated", kBuildHint);
      const auto symbol_name = text_at(bytes, strings.sh_offset + symbol.st_name);
      if (symbol.st_shndx == SHN_UNDEF) continue;
      found = found || symbol_name == kEntry;
      if (symbol_name.substr(0, kEntryPrefix.size()) == kEntryPrefix) other_version = symbol_name;
    }
  }
  if (found) return {};
  if (!other_version.empty()) {
    return Error{Code::kVersion,
                 name + " exports " + std::string(other_version) + ", this FreeRide loads " + std::string(kEntry),
                 "rebuild the plugin against this version's headers, or upgrade FreeRide"};
  }
  return invalid(name, "has no entry symbol " + std::string(kEntry), "end its source with FREERIDE_PLUGIN(YourClass)");
}

}  // namespace freeride
