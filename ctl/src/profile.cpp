#include "profile.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "freeride/bus/codec.hpp"
#include "freeride/policy/verdict.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "plot.hpp"
#include "render.hpp"

namespace freeride::ctl {
namespace {

constexpr size_t kMostFileBytes = 15u << 20;  // of a message's 16 MiB
constexpr std::chrono::milliseconds kLeastPatience{200};
constexpr int kDeepest = 12;  // levels of the file's JSON; a profile has 5

// How far it is, on the standard error: one line that changes on a terminal, else a line whenever there is something
// new.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (terminal_ && shown_) std::cerr << "\r\033[K" << std::flush;
  }
  void show(const std::string& line) {
    if (line == last_) return;
    last_ = line;
    shown_ = true;
    if (terminal_) {
      std::cerr << "\r\033[K" << line << std::flush;
    } else {
      std::cerr << line << "\n" << std::flush;
    }
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
  std::string last_;
};

std::string progress(const std::string& plugin, const bus::ProfileReply& reply) {
  std::string text = "profiling " + plugin + " on " + reply.worker + ": ";
  text +=
      reply.steps == 0 ? reply.reason : human_count(reply.steps) + (reply.steps == 1 ? " step" : " steps") + " so far";
  return printable(text);
}

Error failure(const std::string& plugin, const bus::ProfileReply& reply) {
  bus::TaskState state;
  state.verdict = reply.verdict;
  const auto kind = policy::kind_of(reply.verdict.kind).value_or(policy::VerdictKind::kFailed);
  std::string hint;
  if (kind == policy::VerdictKind::kOutOfMemory) hint = "declare more with --memory";
  if (kind == policy::VerdictKind::kOverran) hint = "its limit: " + reply.verdict.limit;
  return Error{policy::is_plugins_fault(kind) ? Code::kRejected : Code::kInternal,
               "profile of " + plugin + " on " + reply.worker + ": " + outcome(state), hint};
}

// Follows the run to its end. Interrupted, it gives the run up, so that nothing is left behind.
Result<bus::ProfileReply> follow(Session& session, const std::string& plugin, bus::ProfileReply reply) {
  ProgressLine line;
  while (reply.state != "done" && reply.state != "failed") {
    if (interrupted()) {
      const auto stopped = session.ask<bus::ProfileReply>(bus::StopProfile{reply.run});
      if (!stopped) return stopped.error();
      const bool gone = stopped->state == "failed";
      return Error{Code::kInternal,
                   gone ? "interrupted: the profile was given up, and nothing is kept of it"
                        : "interrupted: the profile continues, since a task waits for it",
                   {}};
    }
    line.show(progress(plugin, reply));
    const auto asked = std::chrono::steady_clock::now();
    auto next = session.ask<bus::ProfileReply>(bus::FollowProfile{reply.run, reply.state, reply.steps});
    if (!next) return next.error();
    // A manager answers when there is something new, or after a while. One that does not is not asked without end.
    const bool news = next->state != reply.state || next->steps != reply.steps;
    if (!news && std::chrono::steady_clock::now() - asked < kLeastPatience) std::this_thread::sleep_for(kLeastPatience);
    reply = std::move(*next);
  }
  return reply;
}

Result<std::string> read_text(const std::string& path) {
  auto text = read_file(path, kMostFileBytes);
  if (text || text.error().code != Code::kExhausted) return text;
  return Error{Code::kInvalidArgument, path + " is larger than 15 MiB", "export fewer profiles into it, with --plugin"};
}

// Whole or not at all: a file that was there stays until the new one is complete.
Status write_text(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  {
    const Fd file(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.valid()) return errno_error("cannot write " + next, errno);
    if (!write_all(file.get(), text)) {
      const int error = errno;
      unlink(next.c_str());
      return errno_error("cannot write " + next, error);
    }
  }
  if (rename(next.c_str(), path.c_str()) == 0) return {};
  const int error = errno;
  unlink(next.c_str());
  return errno_error("cannot write " + path, error);
}

Result<bus::ProfileReply> ask_for_profile(Session& session, const ProfileArguments& arguments) {
  std::string attachment;
  auto load = make_load(session, arguments.load, attachment);
  if (!load) return load.error();
  return session.ask<bus::ProfileReply>(
      bus::TakeProfile{std::move(*load), arguments.worker, arguments.device, arguments.again}, std::move(attachment));
}

}  // namespace

Result<int> run_profile(Session& session, ProfileArguments arguments) {
  std::string python;
  if (!arguments.plot.empty()) {  // before anything that takes long
    if (auto s = take(python, find_plotter()); !s) return s.error();
  }
  const std::string plugin = std::filesystem::path(arguments.load.plugin).filename().string();
  catch_interrupts();
  auto reply = ask_for_profile(session, arguments);
  if (!reply && use_shipped_plugin(reply.error(), arguments.load)) reply = ask_for_profile(session, arguments);
  if (!reply) return reply.error();
  const bool kept = reply->run.empty();
  reply = follow(session, plugin, std::move(*reply));
  if (!reply) return reply.error();
  if (reply->state == "done" && reply->profiles.empty()) {
    return Error{Code::kVersion, "the manager says that " + plugin + " was profiled, and sends no profile",
                 "install freeride-ctl and freeride-manager of one version"};
  }
  if (reply->state == "failed") {
    if (!reply->verdict.log_tail.empty()) std::cerr << printable("log\n" + reply->verdict.log_tail, true);
    return failure(plugin, *reply);
  }
  session.out() << (session.json() ? dump(to_json(*reply), 2) + "\n" : render_profile(reply->profiles.front(), kept))
                << std::flush;
  if (arguments.plot.empty()) return kExitOk;
  if (auto drawn = plot_profile(python, arguments.plot, to_json(reply->profiles.front())); !drawn) return drawn.error();
  if (!session.json()) session.out() << printable("picture             " + arguments.plot) << "\n";
  return kExitOk;
}

Result<int> run_profile_list(Session& session, const ProfileArguments& arguments) {
  const auto reply = session.ask<bus::ProfilesReply>(bus::ListProfiles{arguments.load.plugin, false});
  if (!reply) return reply.error();
  return session.print(to_json(*reply), list_profiles(*reply));
}

std::string profiles_file(const std::vector<bus::Profile>& profiles) {
  auto list = nlohmann::json::array();
  for (const bus::Profile& profile : profiles) list.push_back(to_json(profile));
  return dump({{"format", kProfilesFormat}, {"version", kProfilesVersion}, {"profiles", std::move(list)}}, 1) + "\n";
}

Result<bus::ImportProfiles> read_profiles(const std::string& text, const std::string& name) {
  using nlohmann::json;
  const auto wrong = [&name](const std::string& why) {
    return Error{Code::kInvalidArgument, name + " holds no profiles: " + why,
                 "make such a file with freeride-ctl profile export"};
  };
  // Whatever is nested deeper than a profile can be is left out here, before anything walks through it.
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth <= kDeepest; };
  const json file = json::parse(text, shallow, false);
  if (file.is_discarded()) return wrong("it is not JSON");
  if (!file.is_object() || file.value("format", json()) != kProfilesFormat)
    return wrong(std::string("its format is not ") + kProfilesFormat);
  const json version = file.value("version", json());
  if (!version.is_number_integer() || version < 1) return wrong("it says no version");
  if (version > kProfilesVersion) {
    return Error{
        Code::kVersion,
        name + " has version " + version.dump() + ", this freeride-ctl knows " + std::to_string(kProfilesVersion),
        "import it with the freeride-ctl that made it, or a newer one"};
  }
  const json profiles = file.value("profiles", json());
  if (!profiles.is_array()) return wrong("it has no list of profiles");
  // From here on as anything that comes over the wire: bounded, and every field of its type.
  const auto bytes = json::to_msgpack({{"profiles", profiles}});
  auto decoded = bus::decode<bus::ImportProfiles>({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!decoded) return wrong(decoded.error().message);
  return decoded;
}

Result<int> run_profile_export(Session& session, const ProfileArguments& arguments) {
  const auto reply = session.ask<bus::ProfilesReply>(bus::ListProfiles{arguments.load.plugin, true});
  if (!reply) return reply.error();
  if (reply->profiles.empty()) {
    return Error{
        Code::kNotFound,
        "there are no profiles" + (arguments.load.plugin.empty() ? "" : " of " + arguments.load.plugin) + " to export",
        "take one with freeride-ctl profile PLUGIN"};
  }
  if (reply->left_out != 0) {
    return Error{Code::kExhausted, std::to_string(reply->left_out) + " profiles have no room in one file",
                 "export those of one plugin with --plugin"};
  }
  if (auto written = write_text(arguments.file, profiles_file(reply->profiles)); !written) return written.error();
  const size_t count = reply->profiles.size();
  if (session.json()) {
    session.out() << dump({{"exported", count}, {"file", arguments.file}}, 2) << "\n";
  } else {
    session.out() << count << (count == 1 ? " profile" : " profiles") << printable(" in " + arguments.file) << "\n";
  }
  return kExitOk;
}

Result<int> run_profile_import(Session& session, const ProfileArguments& arguments) {
  const auto text = read_text(arguments.file);
  if (!text) return text.error();
  const auto profiles = read_profiles(*text, arguments.file);
  if (!profiles) return profiles.error();
  const auto reply = session.ask<bus::ImportReply>(*profiles);
  if (!reply) return reply.error();
  if (session.json()) {
    session.out() << dump(to_json(*reply), 2) << "\n";
  } else {
    session.out() << reply->added << " added, " << reply->replaced << " replaced, " << reply->older
                  << " older than what the manager has\n";
  }
  return kExitOk;
}

}  // namespace freeride::ctl
