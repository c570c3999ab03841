#include "keys.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <optional>

#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/paths.hpp"
#include "json.hpp"

namespace freeride::ctl {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const KeysArguments& arguments) {
  return arguments.folder.empty() ? Paths::defaults().keys_dir() : fs::path(arguments.folder);
}

fs::path authorized(const KeysArguments& arguments, const std::string& name) {
  return folder_of(arguments) / "authorized" / (name + ".key");
}

// The manager's own key and the folders, made by whoever makes the first key. They are the state folder's owner's:
// root makes keys for a manager that is somebody else.
Result<KeyFile> prepare(const fs::path& folder, uid_t& owner) {
  struct stat above {};
  const fs::path state = fs::absolute(folder).lexically_normal().parent_path();
  if (stat(state.c_str(), &above) != 0) {
    return errno_error("cannot make keys in " + folder.string(), errno,
                       "start freeride-manager once, or name its folder with --keys-dir");
  }
  owner = geteuid() == 0 ? above.st_uid : geteuid();
  for (const fs::path& one : {folder, folder / "authorized"}) {
    if (mkdir(one.c_str(), 0700) == 0) {
      if (owner != geteuid() && chown(one.c_str(), owner, static_cast<gid_t>(-1)) != 0)
        return errno_error("cannot give " + one.string() + " to the manager", errno);
    } else if (errno != EEXIST) {
      return errno_error("cannot make " + one.string(), errno, "run this as the manager's user (sudo)");
    }
  }
  const fs::path own = folder / "manager.key";
  std::error_code failed;
  if (!fs::exists(own, failed) && !failed) {
    auto pair = bus::make_key_pair();
    if (!pair) return pair.error();
    KeyFile key;
    key.name = "manager";
    key.role = "manager";
    key.public_key = pair->public_key;
    key.secret_key = pair->secret_key;
    if (auto made = make_key_file(own, key, 0600, owner); !made) return made.error();
  }
  return read_secret_key(own);
}

Result<int> printed(Session& session, const KeyFile& key, const std::string& out) {
  if (session.json()) {
    session.out() << dump({{"name", key.name},
                           {"role", key.role},
                           {"account", key.account},
                           {"host", key.host},
                           {"public", key.public_key},
                           {"file", out}},
                          2)
                  << "\n";
    return kExitOk;
  }
  session.out()
      << printable("authorised: " + key.name + ", role " + key.role + ", account " + key.account) << "\n"
      << printable("its secret: " + out + " (mode 0600). Move it to where it is used; whoever has it is " + key.name)
      << "\n"
      << printable("there: freeride-ctl --manager tcp://THIS-HOST:PORT --key " + fs::path(out).filename().string() +
                   " " + (key.role == "monitor" ? "events" : "status"))
      << "\n"
      << "the manager: freeride-manager --listen tcp://THIS-HOST:PORT; start it again if it has listened since "
         "before its first key\n";
  return kExitOk;
}

Result<std::vector<KeyFile>> authorized_keys(const KeysArguments& arguments) {
  const fs::path folder = folder_of(arguments) / "authorized";
  std::vector<KeyFile> keys;
  std::error_code failed;
  fs::directory_iterator at(folder, failed);
  if (failed && failed.value() != ENOENT)
    return errno_error("cannot read " + folder.string(), failed.value(), "run this as the manager's user (sudo)");
  for (const fs::directory_iterator end; !failed && at != end; at.increment(failed)) {
    if (at->path().extension() != ".key" || at->path().filename().string()[0] == '.') continue;
    if (auto key = read_authorized_key(at->path())) {
      keys.push_back(std::move(*key));
    } else {
      std::cerr << "freeride-ctl: " << printable(key.error().text()) << "\n";
    }
  }
  return keys;
}

// The key of the node of a host, where there is one.
std::optional<std::string> node_of(const KeysArguments& arguments, const std::string& host) {
  const auto keys = authorized_keys(arguments);
  for (const KeyFile& key : keys ? *keys : std::vector<KeyFile>()) {
    if (key.host == host) return key.name;
  }
  return std::nullopt;
}

}  // namespace

std::string secret_file_of(const KeysArguments& arguments) {
  return arguments.out.empty() ? arguments.name + ".key" : arguments.out;
}

Result<KeyFile> authorized_key(const KeysArguments& arguments) {
  return read_authorized_key(authorized(arguments, arguments.name));
}

Result<KeyFile> make_key(const KeysArguments& arguments) {
  if (!is_task_name(arguments.name)) {
    return Error{Code::kInvalidArgument, "'" + arguments.name + "' cannot be a key's name", kTaskNameRule};
  }
  const bool node = arguments.role == "node";
  if (node != !arguments.host.empty() || (node && !is_host_id(arguments.host))) {
    return Error{Code::kInvalidArgument, "a key of role node, and no other, names its host",
                 node ? "add --host HOST, of at most 56 letters, digits, '.', '_' and '-'"
                      : "leave --host out, or say --role node"};
  }
  // Two nodes of one host would take each other's workers for their own.
  if (const auto other = node ? node_of(arguments, arguments.host) : std::nullopt) {
    return Error{
        Code::kAlreadyExists, "there is a node's key for the host " + arguments.host + " already: " + *other,
        "give each host a name of its own, or revoke that key first (freeride-ctl keys revoke " + *other + ")"};
  }
  if (!arguments.account.empty() &&
      (!is_plain(arguments.account) || arguments.account.find('@') != std::string::npos)) {
    return Error{Code::kInvalidArgument, "'" + arguments.account + "' cannot be an account",
                 "name a user, without '@': what has one is a node's user"};
  }
  uid_t owner = 0;
  const auto manager = prepare(folder_of(arguments), owner);
  if (!manager) return manager.error();
  const auto pair = bus::make_key_pair();
  if (!pair) return pair.error();
  KeyFile key;
  key.name = arguments.name;
  key.role = arguments.role;
  key.account = arguments.account.empty() ? arguments.name : arguments.account;
  key.host = arguments.host;
  key.public_key = pair->public_key;
  // The secret first: a key that nobody has is not authorised.
  const std::string out = secret_file_of(arguments);
  KeyFile secret = key;
  secret.secret_key = pair->secret_key;
  secret.manager_key = manager->public_key;
  if (auto made = make_key_file(out, secret, 0600, geteuid()); !made) return made.error();
  if (auto made = make_key_file(authorized(arguments, key.name), key, 0600, owner); !made) {
    unlink(out.c_str());
    Error error = made.error();
    if (error.code == Code::kAlreadyExists) {
      error.message = "there is a key " + key.name + " already";
      error.hint = "choose another name, or revoke it first (freeride-ctl keys revoke " + key.name + ")";
    }
    return error;
  }
  return key;
}

Result<int> run_keys_make(Session& session, const KeysArguments& arguments) {
  const auto key = make_key(arguments);
  if (!key) return key.error();
  return printed(session, *key, secret_file_of(arguments));
}

Result<int> run_keys_list(Session& session, const KeysArguments& arguments) {
  std::vector<KeyFile> keys;
  if (auto listed = take(keys, authorized_keys(arguments)); !listed) return listed.error();
  std::sort(keys.begin(), keys.end(), [](const KeyFile& a, const KeyFile& b) { return a.name < b.name; });
  auto all = nlohmann::json::array();
  Table table({"KEY", "ROLE", "ACCOUNT", "HOST", "PUBLIC KEY"});
  for (const KeyFile& key : keys) {
    all.push_back({{"name", key.name},
                   {"role", key.role},
                   {"account", key.account},
                   {"host", key.host},
                   {"public", key.public_key}});
    table.add({key.name, key.role, key.account, key.host, key.public_key});
  }
  return session.print({{"keys", all}}, {std::move(table),
                                         "no keys in " + printable((folder_of(arguments) / "authorized").string()) +
                                             "; make one with freeride-ctl keys make NAME --role ROLE\n",
                                         ""});
}

Result<int> run_keys_revoke(Session& session, const KeysArguments& arguments) {
  std::optional<Error> first;
  for (const std::string& name : arguments.names) {
    if (is_task_name(name) && unlink(authorized(arguments, name).c_str()) == 0) {
      if (!session.json()) session.out() << "revoked: " << printable(name) << "\n";
      continue;
    }
    const Error error = !is_task_name(name) || errno == ENOENT
                            ? Error{Code::kNotFound, "there is no key " + name, "see freeride-ctl keys list"}
                            : errno_error("cannot revoke " + name, errno, "run this as the manager's user (sudo)");
    if (first) {
      std::cerr << "freeride-ctl: " << printable(error.text()) << "\n";
    } else {
      first = error;
    }
  }
  if (session.json()) session.out() << dump({{"revoked", arguments.names}}, 2) << "\n";
  if (first) return *first;
  return kExitOk;
}

}  // namespace freeride::ctl
