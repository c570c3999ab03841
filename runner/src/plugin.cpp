#define BOOST_DLL_USE_STD_FS
#include "plugin.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <boost/dll/shared_library.hpp>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "freeride/base/fd.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/python_env.hpp"
#include "grown.hpp"
#include "limits.hpp"
#include "python_plugin.hpp"

namespace freeride::runner {
namespace {

// The table's last field in the first version's header: accepted for ever, whatever has been appended since.
constexpr uint32_t kFirstTable = offsetof(freeride_plugin, extension) + sizeof(freeride_plugin::extension);
// Far beyond any table to come: a size above it is garbage.
constexpr uint32_t kLargestTable = 65536;

Error broken(const std::string& what) {
  return Error{Code::kInvalidArgument, what,
               "the plugin's table breaks the ABI (freeride/plugin.h): correct and rebuild it"};
}

Status check_file(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return errno_error("cannot open plugin " + path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return errno_error("cannot look at plugin " + path, errno);
  const std::string name = std::filesystem::path(path).filename().string();
  if (!S_ISREG(info.st_mode)) return Error{Code::kInvalidArgument, path + " is not a file", "name a plugin's .so file"};
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes == 0 || bytes > kMaxPluginBytes) {
    // Let the one who knows the words say it, without mapping anything.
    return bytes == 0 ? check_plugin_file({}, name)
                      : Status(Error{Code::kExhausted, name + " is larger than a plugin may be", "strip it"});
  }
  void* address = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return errno_error("cannot read plugin " + path, errno);
  auto status = check_plugin_file({static_cast<const char*>(address), bytes}, name);
  munmap(address, bytes);
  return status;
}

// As far as it needs looking at: a plugin's text may have no end.
std::string_view name_at(const char* text) {
  return text == nullptr ? std::string_view() : std::string_view(text, strnlen(text, kMaxPlainName + 1));
}

}  // namespace

Result<freeride_plugin> read_table(const freeride_plugin* theirs) {
  if (theirs == nullptr) return broken(FREERIDE_PLUGIN_ENTRY "() returned NULL");
  // The version first: in another version nothing else need mean what it means here.
  if (theirs->abi_version != FREERIDE_ABI_VERSION) {
    return Error{Code::kVersion,
                 "the plugin was built for plugin ABI version " + std::to_string(theirs->abi_version) +
                     ", this FreeRide speaks version " + std::to_string(FREERIDE_ABI_VERSION),
                 "rebuild the plugin against this version's headers, or upgrade FreeRide"};
  }
  if (theirs->struct_size < kFirstTable || theirs->struct_size > kLargestTable) {
    return broken("the plugin says that its table has " + std::to_string(theirs->struct_size) + " bytes, ABI version " +
                  std::to_string(FREERIDE_ABI_VERSION) + " has at least " + std::to_string(kFirstTable));
  }
  const freeride_plugin table = read_grown(*theirs);
  if (!is_plugin_name(name_at(table.name))) return broken("the plugin's name is not [a-z0-9_-]+");
  if (table.version == nullptr || table.summary == nullptr) return broken("the plugin's version or summary is NULL");
  const std::pair<const char*, bool> functions[] = {
      {"create", table.create != nullptr},   {"init", table.init != nullptr},
      {"start", table.start != nullptr},     {"run_next_step", table.run_next_step != nullptr},
      {"pause", table.pause != nullptr},     {"stop", table.stop != nullptr},
      {"destroy", table.destroy != nullptr},
  };
  for (const auto& [name, there] : functions) {
    if (!there) return broken(std::string("the plugin's ") + name + " is NULL");
  }
  if (table.param_count > kMostParams || (table.param_count > 0 && table.params == nullptr)) {
    return broken("the plugin declares " + std::to_string(table.param_count) + " parameters, but no list of them");
  }
  for (uint32_t i = 0; i < table.param_count; ++i) {
    const freeride_param_spec& spec = table.params[i];
    if (!is_plain(name_at(spec.key)) || spec.default_value == nullptr || spec.help == nullptr) {
      return broken("parameter " + std::to_string(i) + " of the plugin has no key, default or help text");
    }
  }
  return table;
}

Result<freeride_plugin> open_plugin(const std::string& path, const Params& given) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return Error{Code::kInvalidArgument, "not a path: " + path, "name a plugin's .so file"};
  if (auto status = check_file(absolute.string()); !status.ok()) return status.error();
  if (is_script_name(path)) {
    std::string python = kDefaultPython;
    for (const auto& [key, value] : given) {
      if (key == kPythonParam) python = value;
    }
    auto table = open_python_plugin(absolute.string(), python);
    if (!table.ok()) return table.error();
    return read_table(*table);
  }

  dlerror();
  // Never closed, so it must outlive everything: a closed plugin can stay mapped, or go while its code still runs.
  auto* library = new boost::dll::shared_library();  // NOLINT(cppcoreguidelines-owning-memory)
  library->load(absolute, error, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  if (error) {
    const char* said = dlerror();
    const std::string text = said != nullptr ? said : error.message();
    delete library;
    const bool torch = text.find("torch") != std::string::npos || text.find("c10") != std::string::npos;
    return Error{Code::kInvalidArgument, "cannot load plugin: " + text,
                 torch ? "build it with the LibTorch that it is to use, and name that one's Python with --python"
                       : "link the libraries it needs, or install them here"};
  }
  if (!library->has(FREERIDE_PLUGIN_ENTRY)) {
    return Error{Code::kInvalidArgument, path + " has no entry symbol " FREERIDE_PLUGIN_ENTRY,
                 "end its source with FREERIDE_PLUGIN(YourClass)"};
  }
  const auto& entry = library->get<const freeride_plugin*()>(FREERIDE_PLUGIN_ENTRY);
  return read_table(entry());
}

std::optional<freeride_imperative> imperative_extension(const freeride_plugin& plugin) {
  if (plugin.extension == nullptr) return std::nullopt;
  const auto* theirs = static_cast<const freeride_imperative*>(plugin.extension(FREERIDE_EXTENSION_IMPERATIVE));
  if (theirs == nullptr) return std::nullopt;
  const freeride_imperative imperative = read_grown(*theirs);
  return imperative.run_gpu_workload != nullptr ? std::optional(imperative) : std::nullopt;
}

Result<Params> resolve_params(const freeride_plugin& table, const Params& given, bool* imperative) {
  std::string known;
  Params resolved;
  for (uint32_t i = 0; i < table.param_count; ++i) {
    known += (i == 0 ? "" : ", ") + std::string(table.params[i].key);
    resolved.emplace_back(table.params[i].key, table.params[i].default_value);
  }
  std::vector<bool> seen(resolved.size());
  for (const auto& [key, value] : given) {
    const auto found =
        std::find_if(resolved.begin(), resolved.end(), [&, k = key](const auto& p) { return p.first == k; });
    if (found == resolved.end() && key == kInterfaceParam) {
      if (value != "iterative" && value != "imperative") {
        return Error{Code::kInvalidArgument, "there is no interface '" + value + "'", "iterative or imperative"};
      }
      const bool wanted = value == "imperative";
      if (wanted && !imperative_extension(table)) {
        return Error{Code::kInvalidArgument, std::string(table.name) + " has no imperative interface",
                     "load it without --param interface=imperative"};
      }
      if (imperative != nullptr) *imperative = wanted;
      continue;
    }
    if (found == resolved.end()) {
      return Error{Code::kInvalidArgument, std::string(table.name) + " has no parameter '" + key + "'",
                   known.empty() ? "it has none at all" : "it knows: " + known};
    }
    const auto index = static_cast<size_t>(found - resolved.begin());
    if (seen[index]) return Error{Code::kInvalidArgument, "parameter '" + key + "' was given twice", "give it once"};
    seen[index] = true;
    found->second = value;
  }
  return resolved;
}

}  // namespace freeride::runner
