#include "freeride/base/key_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "freeride/base/access.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/names.hpp"

namespace freeride {
namespace {

constexpr size_t kMostBytes = 16u << 10;
constexpr std::string_view kZ85Marks = ".-:+=^!/*?&<>()[]{}@%$#";

struct Field {
  const char* name;
  std::string KeyFile::*value;
  bool is_key;
};
constexpr std::array<Field, 7> kFields = {{{"name", &KeyFile::name, false},
                                           {"role", &KeyFile::role, false},
                                           {"account", &KeyFile::account, false},
                                           {"host", &KeyFile::host, false},
                                           {"public", &KeyFile::public_key, true},
                                           {"secret", &KeyFile::secret_key, true},
                                           {"manager", &KeyFile::manager_key, true}}};

Error bad(const std::string& where, const std::string& what) {
  return {Code::kInvalidArgument, where + " is no key file: " + what, "make one with freeride-ctl keys make"};
}

Result<KeyFile> read_checked(const std::filesystem::path& file, mode_t forbidden, const char* what) {
  const Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0)
    return errno_error("cannot read the key file " + file.string(), errno,
                       errno == ELOOP ? "name the file itself, not a link to it" : "");
  if (!is_trusted_user(info.st_uid)) {
    return Error{Code::kPermission,
                 "the key file " + file.string() + " is not used: it belongs to " + user_name(info.st_uid),
                 "it has to be yours or root's"};
  }
  if (S_ISREG(info.st_mode) && (info.st_mode & forbidden) != 0) {
    return Error{Code::kPermission, "the key file " + file.string() + " is not used: other users may " + what + " it",
                 "chmod 600 " + file.string() + (forbidden == 077 ? ", and make a new key if somebody may have" : "")};
  }
  const auto text = read_file(fd.get(), file.string(), kMostBytes);
  if (!text) return text.error();
  return parse_key_file(*text, file.string());
}

}  // namespace

bool is_z85_key(std::string_view text) {
  return text.size() == kZ85KeyBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  kZ85Marks.find(c) != kZ85Marks.npos;
         });
}

Result<KeyFile> parse_key_file(std::string_view text, const std::string& where) {
  KeyFile key;
  size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || line[0] == '#') continue;
    const std::string at = "line " + std::to_string(number);
    const size_t space = line.find(' ');
    if (space == line.npos || !is_plain(line, 256)) return bad(where, at + " is not 'field value'");
    const std::string_view name = line.substr(0, space), value = line.substr(space + 1);
    const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return name == f.name; });
    if (field == kFields.end()) continue;
    std::string& into = key.*(field->value);
    if (!into.empty()) return bad(where, at + " says '" + std::string(name) + "' once more");
    if (field->is_key && !is_z85_key(value)) return bad(where, at + " is no key of 40 characters");
    into = value;
  }
  if (!is_task_name(key.name)) return bad(where, "it has no 'name' that can be one");
  if (key.public_key.empty()) return bad(where, "it has no 'public' key");
  if (!key.account.empty() && !is_plain(key.account)) return bad(where, "its 'account' can be none");
  return key;
}

std::string key_file_text(const KeyFile& key) {
  std::string text;
  for (const Field& field : kFields) {
    if (!(key.*(field.value)).empty()) text += std::string(field.name) + " " + key.*(field.value) + "\n";
  }
  return text;
}

Result<KeyFile> read_secret_key(const std::filesystem::path& file) {
  auto key = read_checked(file, 077, "read");
  if (key && key->secret_key.empty()) return bad(file.string(), "it has no 'secret' key");
  return key;
}

Result<KeyFile> read_authorized_key(const std::filesystem::path& file) {
  return read_checked(file, 022, "write");
}

Status make_key_file(const std::filesystem::path& file, const KeyFile& key, mode_t mode, uid_t owner) {
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  std::string fresh = (folder / ("." + file.filename().string() + ".XXXXXX")).string();
  const Fd fd(mkostemp(fresh.data(), O_CLOEXEC));  // mode 0600
  if (!fd.valid()) return errno_error("cannot make " + file.string(), errno, "check who owns " + folder.string());
  Status made;
  if (!write_all(fd.get(), "# A FreeRide key. Whoever has its secret is who it names.\n" + key_file_text(key)) ||
      (owner != geteuid() && fchown(fd.get(), owner, static_cast<gid_t>(-1)) != 0) || fchmod(fd.get(), mode) != 0 ||
      fsync(fd.get()) != 0) {
    made = errno_error("cannot write " + file.string(), errno);
  } else if (link(fresh.c_str(), file.c_str()) != 0) {
    made = errno_error("cannot make " + file.string(), errno,
                       errno == EEXIST ? "choose another name, or remove it first" : "");
  }
  unlink(fresh.c_str());
  return made;
}

}  // namespace freeride
