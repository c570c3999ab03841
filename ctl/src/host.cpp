#include "host.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstring>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <ctime>
#include <filesystem>
#include <thread>
#include <vector>

#include "env_file.hpp"
#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/waiting.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/network.hpp"
#include "freeride/bus/probe.hpp"
#include "freeride/policy/permission.hpp"
#include "json.hpp"
#include "run_program.hpp"

namespace freeride::ctl {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr const char* kEtc = "/etc/freeride";
constexpr const char* kListen = "tcp://*:7420";
constexpr const char* kPort = "7420";
constexpr const char* kScheme = "tcp://";
constexpr const char* kManagerUnit = "freeride-manager";
constexpr const char* kNodeUnit = "freeride-node";
constexpr size_t kMostBytes = 1u << 20;
constexpr std::chrono::seconds kPortPatience{3}, kKeyPatience{5};
constexpr std::chrono::seconds kManagerPatience{10}, kNodePatience{20};
constexpr std::chrono::seconds kAnswerPatience{2}, kSettled{2};
constexpr std::chrono::milliseconds kLook{300};

fs::path folder_of(const HostArguments& arguments) {
  return arguments.etc.empty() ? fs::path(kEtc) : fs::absolute(arguments.etc).lexically_normal();
}

// Without root only a folder of one's own can be changed.
Status check_root(const HostArguments& arguments, const char* verb) {
  if (geteuid() == 0 || !arguments.etc.empty() || arguments.no_start) return {};
  return Error{Code::kPermission,
               std::string("host ") + verb + " changes " + kEtc + " and starts a service: only root may",
               std::string("sudo freeride-ctl host ") + verb + " ..."};
}

// ---- files

// Empty where there is none.
Result<std::string> read_text(const fs::path& file) {
  auto text = read_file(file, kMostBytes);
  if (!text && text.error().code == Code::kNotFound) return std::string();
  return text;
}

Status make_folder(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return errno_error("cannot make " + folder.string(), failed.value());
  return {};
}

// Whole or not at all.
Status replace_file(const fs::path& file, const std::string& text, mode_t mode, const struct stat* owner = nullptr) {
  std::string fresh = (file.parent_path() / ("." + file.filename().string() + ".XXXXXX")).string();
  const Fd fd(mkostemp(fresh.data(), O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot write " + file.string(), errno);
  if (!write_all(fd.get(), text) || (owner != nullptr && fchown(fd.get(), owner->st_uid, owner->st_gid) != 0) ||
      fchmod(fd.get(), mode) != 0 || fsync(fd.get()) != 0 || rename(fresh.c_str(), file.c_str()) != 0) {
    const int error = errno;
    unlink(fresh.c_str());
    return errno_error("cannot write " + file.string(), error);
  }
  return {};
}

// The same of settings: mode and owner of a file that is there stay, and a link to one stays a link.
Status replace_settings(const fs::path& file, const std::string& text) {
  std::error_code none;
  const fs::path real = fs::canonical(file, none);
  struct stat before {};
  if (none || stat(real.c_str(), &before) != 0) return replace_file(file, text, 0644);
  return replace_file(real, text, before.st_mode & 07777, &before);
}

// ---- units

// Errors: kUnavailable with what systemctl has said.
Status systemctl(const char* verb, const char* unit, const std::string& hint) {
  const auto ran = run_program({"systemctl", verb, unit});
  const std::string said = std::string("systemctl ") + verb + " " + unit;
  if (!ran) return Error{Code::kUnavailable, said + ": " + ran.error().message, hint};
  if (ran->code == 0) return {};
  return Error{Code::kUnavailable, said + " has failed: " + first_line(ran->out), hint};
}

// `verb`: restart, or start, which leaves a unit that runs as it is.
Status enable_and(const char* verb, const char* unit, const std::string& hint) {
  if (auto enabled = systemctl("enable", unit, hint); !enabled) return enabled;
  return systemctl(verb, unit, hint);
}

std::string commands_to_start(const char* unit) {
  return std::string("systemctl enable ") + unit + " && systemctl restart " + unit;
}

// The last line of its log since then, or of what it has started, without time and level; empty: none is known.
std::string last_word(const char* program, std::time_t since) {
  const auto ran = run_program({"journalctl", "--quiet", "--output", "cat", "--lines", "1", "--identifier", program,
                                "--since", "@" + std::to_string(since)});
  if (!ran || ran->code != 0) return {};
  const std::string line = first_line(ran->out);
  const size_t name = line.find("[freeride-"), end = line.find("] ", std::min(name, line.size()));
  return end == line.npos ? line : line.substr(end + 2);
}

// The units that would want this host's devices, workers first: the start of one starts the manager, too.
Result<std::vector<std::string>> competing_units() {
  const auto ran = run_program({"systemctl", "list-units", "--no-legend", "--plain", "--no-pager",
                                "--state=active,activating,reloading,deactivating", "freeride-worker@*.service",
                                "freeride-manager.service"});
  if (!ran) return ran.error();
  if (ran->code != 0) return Error{Code::kUnavailable, "systemctl has failed: " + first_line(ran->out), ""};
  std::vector<std::string> units;
  for (std::string_view rest = ran->out; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t end = line.find(".service");
    if (end == line.npos || line.rfind("freeride-", 0) != 0) continue;
    const std::string unit(line.substr(0, end));
    units.insert(unit == kManagerUnit ? units.end() : units.begin(), unit);
  }
  return units;
}

Status check_units(const HostArguments& arguments) {
  const auto units = competing_units();
  if (!units) {
    if (arguments.no_start) return {};  // there is no systemd, and so no unit
    return Error{Code::kUnavailable, "systemd does not say which units run here: " + units.error().message,
                 "--no-start writes the settings only"};
  }
  if (units->empty()) return {};
  std::string all, words;
  for (const std::string& unit : *units) {
    all += (all.empty() ? "" : ", ") + unit;
    words += " " + unit;
  }
  const bool manager = units->back() == kManagerUnit;
  return Error{Code::kAlreadyExists,
               "this host has units that would compete with freeride-node for its devices: " + printable(all),
               "systemctl disable --now" + printable(words) + ", then this command again" +
                   (manager ? "; not on the manager's own host, which needs no join" : "")};
}

// ---- the manager or node of this host

// `run_dir`: as the unit's settings name it; empty: they do not.
Result<bus::StatusReply> status_here(Session& session, const fs::path& run_dir) {
  Paths paths = Paths::defaults();
  paths.run_dir = Paths::run_dir_with("commands.sock", run_dir);
  Options options;
  options.commands_endpoint = paths.commands_endpoint();
  options.events_endpoint = paths.events_endpoint();
  options.timeout = kAnswerPatience;
  Session here(options, session.out());
  return here.ask<bus::StatusReply>(bus::GetStatus{});
}

// ---- add

// What the manager is set to, and where that is said.
struct ManagerSettings {
  fs::path file;     // manager.env
  std::string text;  // what it holds
  std::string listen, said_by;
  std::string keys_dir, run_dir;
};

// As systemd and the program read them: the environment file over the configuration file.
Result<ManagerSettings> read_manager_settings(const HostArguments& arguments) {
  ManagerSettings settings;
  settings.file = folder_of(arguments) / "manager.env";
  if (auto read = take(settings.text, read_text(settings.file)); !read) return read.error();
  fs::path config = env_value(settings.text, "FREERIDE_CONFIG");
  if (config.empty()) config = folder_of(arguments) / "freeride.toml";
  std::error_code ignored;
  const bool has_config = fs::exists(config, ignored);
  const auto setting = [&](const char* name, const char* key, std::string& from) -> Result<std::string> {
    const std::string own = "FREERIDE_MANAGER" + std::string(name).substr(std::strlen("FREERIDE"));
    std::string value = env_value(settings.text, own);
    if (value.empty()) value = env_value(settings.text, name);
    from = settings.file.string();
    if (!value.empty() || !has_config) return value;
    const auto said = read_setting("manager", key, config);
    if (!said) return said.error();
    from = config.string();
    return said->value_or("");
  };
  std::string from;
  if (auto s = take(settings.listen, setting("FREERIDE_LISTEN", "listen", settings.said_by)); !s) return s.error();
  if (auto s = take(settings.keys_dir, setting("FREERIDE_KEYS_DIR", "keys_dir", from)); !s) return s.error();
  settings.run_dir = arguments.run_dir;
  if (settings.run_dir.empty()) {
    if (auto s = take(settings.run_dir, setting("FREERIDE_RUN_DIR", "run_dir", from)); !s) return s.error();
  }
  if (!settings.keys_dir.empty()) return settings;
  std::string state;
  if (auto s = take(state, setting("FREERIDE_STATE_DIR", "state_dir", from)); !s) return s.error();
  if (!state.empty()) settings.keys_dir = (fs::path(state) / "keys").string();
  return settings;
}

// What a manager that runs listens at without such a setting, by a flag of its own.
std::string listens_now(Session& session, const ManagerSettings& settings) {
  const auto status = status_here(session, settings.run_dir);
  return status ? status->network.substr(0, status->network.find(", ")) : std::string();
}

// Error: what it is set to keeps other hosts out, or is no address.
Status check_listen(const std::string& listen, const std::string& said_by) {
  const auto nodes = bus::nodes_port_of(listen);
  const auto loopback = nodes ? bus::is_loopback(listen) : Result<bool>(nodes.error());
  const std::string hint = std::string("write FREERIDE_LISTEN=") + kListen + " or an address of this host to " +
                           said_by + ", and systemctl restart freeride-manager";
  if (!loopback) return Error{Code::kInvalidArgument, said_by + ": " + loopback.error().message, hint};
  if (!*loopback) return {};
  return Error{Code::kInvalidArgument, "the manager listens at " + listen + ", where no other host reaches it", hint};
}

// The key that was made for this host before, in the file that it would be written to.
bool is_made_already(const KeysArguments& keys) {
  const auto authorised = authorized_key(keys);
  const auto secret = read_secret_key(secret_file_of(keys));
  return authorised && secret && authorised->role == "node" && authorised->host == keys.host &&
         authorised->public_key == secret->public_key;
}

std::string three_ports(const std::string& endpoint) {
  const auto port = [](const std::string& at) { return at.substr(at.rfind(':') + 1); };
  return port(endpoint) + ", " + port(bus::events_port_of(endpoint).value()) + " and " +
         port(bus::nodes_port_of(endpoint).value());
}

Status wait_until_it_listens(Session& session, const ManagerSettings& settings, std::time_t since) {
  const Waiting line("waiting for freeride-manager");
  const auto end = steady_clock::now() + kManagerPatience;
  do {
    if (const auto status = status_here(session, settings.run_dir); status && !status->network.empty()) return {};
    std::this_thread::sleep_for(kLook);
  } while (steady_clock::now() < end);
  const std::string word = last_word("freeride-manager", since);
  return Error{Code::kUnavailable,
               std::string("freeride-manager was restarted and does not listen at ") + kListen +
                   (word.empty() ? "" : ": " + printable(word)),
               "journalctl -u freeride-manager says more"};
}

// What was done about listening, as a part of a sentence.
Result<std::string> let_it_listen(Session& session, const HostArguments& arguments, const ManagerSettings& settings) {
  const auto text = with_env_settings(settings.text, {{"FREERIDE_LISTEN", kListen}}, settings.file.string());
  if (!text) return text.error();
  if (auto folder = make_folder(settings.file.parent_path()); !folder) return folder.error();
  if (auto written = replace_settings(settings.file, *text); !written) return written.error();
  const std::string done = settings.file.string() + " now has FREERIDE_LISTEN=" + kListen;
  if (arguments.no_start) return done;
  const std::time_t since = std::time(nullptr);
  const std::string hint = "mend that, then: " + commands_to_start(kManagerUnit);
  if (auto started = enable_and("restart", kManagerUnit, hint); !started) return started.error();
  if (auto listens = wait_until_it_listens(session, settings, since); !listens) return listens.error();
  return done + ", and freeride-manager was restarted";
}

// ---- join

// As freeride-node will read it.
Result<KeyFile> read_node_key(const std::string& file) {
  auto key = read_secret_key(file);
  if (!key) return key;
  if (key->role == "node" && !key->manager_key.empty() && is_host_id(key->host)) return key;
  return Error{Code::kInvalidArgument, file + " is no key of a node (its role is '" + key->role + "')",
               "make one on the manager's host: freeride-ctl host add NAME-OF-THIS-HOST"};
}

Status check_ports(const std::string& endpoint, const std::string& host) {
  const Waiting line("looking whether the ports of " + printable(endpoint) + " are open");
  std::vector<std::string> closed;
  Error first;
  const std::array<std::string, 3> all = {endpoint, bus::events_port_of(endpoint).value(),
                                          bus::nodes_port_of(endpoint).value()};
  for (const std::string& one : all) {
    const auto open = bus::probe_tcp(one, kPortPatience);
    if (open) continue;
    if (open.error().code == Code::kInvalidArgument) return open.error();  // the host is not known
    if (closed.empty()) first = open.error();
    closed.push_back(one.substr(one.rfind(':') + 1));
  }
  if (closed.empty()) return {};
  if (closed.size() == 2) first.message += ", nor at port " + closed[1];
  if (closed.size() == 3) first.message += ", nor at ports " + closed[1] + " and " + closed[2];
  first.hint = closed.size() == all.size()
                   ? "is this the manager's host? freeride-ctl host add " + host +
                         " lets its manager listen; a firewall must let this host reach ports " + three_ports(endpoint)
                   : "a firewall must let this host reach ports " + three_ports(endpoint) + " there";
  return first;
}

// Before anything is changed the manager says whether it knows the key.
Status check_key(const std::string& endpoint, const KeyFile& key, const std::string& file) {
  zmq::context_t context(1);
  const bus::ClientKey client{key.public_key, key.secret_key, key.manager_key, file};
  auto requester = bus::Requester::connect(context, endpoint, &client);
  if (!requester) return requester.error();
  (*requester)->speak_for(geteuid());
  const auto reply = (*requester)->request(bus::GetStatus{}, kKeyPatience);
  return reply ? Status() : Status(reply.error());
}

std::vector<EnvSetting> node_settings(const HostArguments& arguments, const std::string& endpoint,
                                      const fs::path& key) {
  std::vector<EnvSetting> settings = {{"FREERIDE_MANAGER", endpoint}, {"FREERIDE_KEY", key.string()}};
  if (!arguments.device.empty()) settings.push_back({"FREERIDE_DEVICE", arguments.device});
  if (!arguments.cores.empty()) settings.push_back({"FREERIDE_CORES", arguments.cores});
  return settings;
}

// Whether anything had to be changed.
Result<bool> install(const HostArguments& arguments, const std::string& endpoint) {
  const fs::path folder = folder_of(arguments), key_to = folder / "node.key", env = folder / "node.env";
  const auto secret = read_file(arguments.key_file, kMostBytes);
  if (!secret) return secret.error();
  const auto before = read_text(env);
  if (!before) return before.error();
  const auto text = with_env_settings(*before, node_settings(arguments, endpoint, key_to), env.string());
  if (!text) return text.error();
  if (auto made = make_folder(folder); !made) return made.error();
  bool changed = false;
  struct stat info {};
  const auto present = read_text(key_to);
  if (!present || *present != *secret || lstat(key_to.c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
      (info.st_mode & 07777) != 0600) {
    if (auto written = replace_file(key_to, *secret, 0600); !written) return written.error();
    changed = true;
  }
  if (*text != *before) {
    if (auto written = replace_settings(env, *text); !written) return written.error();
    changed = true;
  }
  return changed;
}

size_t workers_up(const bus::StatusReply& status, const std::string& host) {
  return static_cast<size_t>(std::count_if(status.workers.begin(), status.workers.end(), [&](const auto& one) {
    return one.state.state == "up" && policy::host_of_worker(one.state.worker) == host;
  }));
}

// How many workers of this host the manager has, once that is the same for a while. Workers come one by one.
Result<size_t> wait_until_joined(Session& session, const HostArguments& arguments, const std::string& endpoint,
                                 const std::string& host) {
  const Waiting line("waiting for freeride-node");
  const std::time_t since = std::time(nullptr);
  const auto settings = read_text(folder_of(arguments) / "node.env");
  if (!settings) return settings.error();
  const std::string run_dir = arguments.run_dir.empty() ? env_value(*settings, "FREERIDE_RUN_DIR") : arguments.run_dir;
  const auto end = steady_clock::now() + kNodePatience;
  auto changed = steady_clock::now();
  size_t up = 0;
  Error last;
  bool in = false;
  while (steady_clock::now() < end) {
    const auto status = status_here(session, run_dir);
    in = status.ok();
    const size_t now = in ? workers_up(*status, host) : 0;
    if (now != up) changed = steady_clock::now();
    up = now;
    if (!in) last = status.error();
    if (up > 0 && steady_clock::now() - changed >= kSettled) return up;
    std::this_thread::sleep_for(kLook);
  }
  if (up > 0) return up;
  const std::string word = printable(last_word(kNodeUnit, since));
  std::string hint = "journalctl -u freeride-node says more";
  if (arguments.device.empty() && word.find("--device") != word.npos)
    hint = "on a host without GPUs add --device cpu-0 --cores 0 to this command; " + hint;
  if (in)
    return Error{Code::kExhausted,
                 "this host has joined " + endpoint + " as " + host + ", and none of its workers is up" +
                     (word.empty() ? "" : ": " + word),
                 hint};
  return Error{Code::kUnavailable,
               word.empty() ? last.message : "freeride-node has not joined " + endpoint + ": " + word, hint};
}

}  // namespace

Result<std::string> manager_endpoint(const std::string& head) {
  std::string endpoint = head;
  if (head.rfind(kScheme, 0) != 0) {
    const size_t colons = static_cast<size_t>(std::count(head.begin(), head.end(), ':'));
    const bool bracketed = !head.empty() && head.front() == '[';
    endpoint = kScheme + (colons > 1 && !bracketed ? "[" + head + "]" : head);
  }
  // A port follows the last colon, which is not one of an IPv6 address.
  const size_t name = std::string(kScheme).size(), bracket = endpoint.rfind(']');
  const size_t colon = endpoint.rfind(':');
  if (colon < name || (bracket != endpoint.npos && colon < bracket)) endpoint += std::string(":") + kPort;
  if (auto nodes = bus::nodes_port_of(endpoint); !nodes || endpoint.find('*') != endpoint.npos)
    return Error{Code::kInvalidArgument, "'" + head + "' is no host's name or address",
                 "name the manager's host, or tcp://HOST:PORT"};
  return endpoint;
}

std::string head_of(const std::string& listen, const std::string& hostname) {
  const size_t colon = listen.rfind(':'), name = std::string(kScheme).size();
  std::string host = listen.substr(name, colon - name);
  const std::string port = listen.substr(colon + 1);
  if (host == "*" || host == "0.0.0.0" || host == "[::]") host = hostname;
  return port == kPort ? host : kScheme + host + ":" + port;
}

Result<int> run_host_add(Session& session, const HostArguments& arguments) {
  if (auto may = check_root(arguments, "add"); !may) return may.error();
  KeysArguments keys = arguments.keys;
  if (!is_host_id(keys.host)) {
    return Error{Code::kInvalidArgument, "'" + keys.host + "' cannot be a host's name",
                 "use at most 56 letters, digits, '.', '_' and '-', no '.' first"};
  }
  auto settings = read_manager_settings(arguments);
  if (!settings) return settings.error();
  if (settings->listen.empty() && !arguments.no_start) {
    settings->listen = listens_now(session, *settings);
    settings->said_by = settings->file.string();
  }
  const bool listens = !settings->listen.empty();
  if (listens) {
    if (auto fits = check_listen(settings->listen, settings->said_by); !fits) return fits.error();
  }
  keys.name = keys.host + "-node";
  keys.role = "node";
  if (keys.folder.empty()) keys.folder = settings->keys_dir;
  const std::string file = secret_file_of(keys);
  const bool had_key = is_made_already(keys);
  if (!had_key) {
    if (const auto made = make_key(keys); !made) return made.error();
  }
  std::string listening = "the manager is set to listen at " + settings->listen + " already";
  if (!listens) {
    if (auto done = take(listening, let_it_listen(session, arguments, *settings)); !done) return done.error();
    settings->listen = kListen;
  }
  const bool runs = !arguments.no_start && (!listens || !listens_now(session, *settings).empty());
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') name = {"HEAD"};
  const std::string join =
      "freeride-ctl host join " + head_of(settings->listen, name.data()) + " " + fs::path(file).filename().string();
  if (session.json()) {
    session.out() << dump({{"host", keys.host},
                           {"key", keys.name},
                           {"file", file},
                           {"listen", settings->listen},
                           {"changed", !had_key || !listens},
                           {"join", join}},
                          2)
                  << "\n";
    return kExitOk;
  }
  session.out() << printable((had_key ? file + ", the key of " + keys.host + ", is there already; "
                                      : "made " + file + ", the key of " + keys.host + "; ") +
                             listening)
                << "\n";
  if (!runs) session.out() << "start it: " << commands_to_start(kManagerUnit) << "\n";
  session.out() << printable("copy " + file + " to " + keys.host + ", where only root can read it, and type there:")
                << "\n"
                << printable("    " + join) << "\n"
                << printable(keys.host + " must reach ports " + three_ports(settings->listen) + " of this host")
                << "\n";
  return kExitOk;
}

Result<int> run_host_join(Session& session, const HostArguments& arguments) {
  if (auto may = check_root(arguments, "join"); !may) return may.error();
  const auto endpoint = manager_endpoint(arguments.head);
  if (!endpoint) return endpoint.error();
  for (const std::string* one : {&arguments.device, &arguments.cores}) {
    if (!one->empty() && !is_plain(*one))
      return Error{Code::kInvalidArgument, "'" + *one + "' is no device and no cores", "as --device cpu-0 --cores 0"};
  }
  const auto key = read_node_key(arguments.key_file);
  if (!key) return key.error();
  if (auto alone = check_units(arguments); !alone) return alone.error();
  if (auto open = check_ports(*endpoint, key->host); !open) return open.error();
  if (auto known = check_key(*endpoint, *key, arguments.key_file); !known) return known.error();
  const auto changed = install(arguments, *endpoint);
  if (!changed) return changed.error();
  const std::string folder = folder_of(arguments).string();
  size_t workers = 0;
  if (!arguments.no_start) {
    const char* verb = *changed ? "restart" : "start";  // a restart would end this host's side tasks
    if (auto up = enable_and(verb, kNodeUnit, "mend that, then: " + commands_to_start(kNodeUnit)); !up)
      return up.error();
    if (auto up = take(workers, wait_until_joined(session, arguments, *endpoint, key->host)); !up) return up.error();
  }
  if (session.json()) {
    session.out() << dump({{"host", key->host},
                           {"manager", *endpoint},
                           {"folder", folder},
                           {"changed", *changed},
                           {"started", !arguments.no_start},
                           {"workers", workers}},
                          2)
                  << "\n";
    return kExitOk;
  }
  if (arguments.no_start) {
    session.out() << printable(folder + "/node.key and " + folder + "/node.env let this host join " + *endpoint +
                               " as " + key->host)
                  << "\n"
                  << "start it: " << commands_to_start(kNodeUnit) << "\n";
    return kExitOk;
  }
  session.out() << printable("joined " + *endpoint + " as " + key->host + ", with " + std::to_string(workers) +
                             (workers == 1 ? " worker" : " workers"))
                << "\n";
  return kExitOk;
}

}  // namespace freeride::ctl
