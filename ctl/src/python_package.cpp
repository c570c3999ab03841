#include "python_package.hpp"

#include <openssl/evp.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <system_error>
#include <vector>

#include "freeride/base/files.hpp"
#include "freeride/base/plugin_file.hpp"

namespace freeride::ctl {
namespace {

namespace fs = std::filesystem;

// Base64 makes it a third larger.
constexpr size_t kMostBytes = kMaxScriptBytes / 4 * 3 - 65536;

bool is_identifier(const std::string& name) {
  const auto word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(), word);
}

std::string base64(const std::string& bytes) {
  std::vector<unsigned char> text((bytes.size() + 2) / 3 * 4 + 1);
  const int length = EVP_EncodeBlock(text.data(), reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  return std::string(text.begin(), text.begin() + length);
}

// A Python literal, whatever bytes a file's name has.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const unsigned char c : text) {
    if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

bool is_left_out(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.empty() || name[0] == '.' || name == "__pycache__" || path.extension() == ".pyc";
}

}  // namespace

std::string package_name(const fs::path& folder) {
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(folder, ignored);
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

Result<std::string> pack_python_folder(const fs::path& folder) {
  const std::string name = package_name(folder);
  std::error_code error;
  if (!fs::is_regular_file(folder / "__init__.py", error)) {
    return Error{Code::kInvalidArgument,
                 "the folder " + folder.string() + " is no Python package: it has no __init__.py",
                 "put the class that inherits freeride_plugin.SideTask there, or import it there"};
  }
  if (!is_identifier(name)) {
    return Error{Code::kInvalidArgument, "the folder " + folder.string() + " has a name that Python cannot import",
                 "give it one of letters, digits and underscores"};
  }
  std::map<std::string, std::string> files;
  size_t bytes = 0;
  fs::recursive_directory_iterator at(folder, error);
  for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (is_left_out(at->path())) {
      if (at->is_directory(ignored)) at.disable_recursion_pending();
      continue;
    }
    if (!at->is_regular_file(ignored)) continue;
    auto content = read_file(at->path().string(), kMostBytes);
    if (!content) return content.error();
    bytes += content->size();
    if (bytes > kMostBytes) {
      return Error{Code::kExhausted,
                   "the folder " + folder.string() + " holds more than " + std::to_string(kMostBytes >> 20) + " MiB",
                   "keep data out of the package, in a folder that its tasks are given (--read)"};
    }
    files[at->path().lexically_relative(folder).generic_string()] = std::move(*content);
  }
  if (error) return errno_error("cannot read the folder " + folder.string(), error.value());
  std::string text = "# The side task of the package " + name + ", made by freeride-ctl from its folder.\n";
  text += "import freeride_plugin\n\nfreeride_plugin.open_package(globals(), " + quoted(name) + ", {\n";
  for (const auto& [file, content] : files) text += "    " + quoted(file) + ": \"" + base64(content) + "\",\n";
  return text + "})\n";
}

}  // namespace freeride::ctl
