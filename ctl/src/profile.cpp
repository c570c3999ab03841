#include "profile.hpp"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>

#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/policy/verdict.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "render.hpp"

namespace freeride::ctl {
namespace {

constexpr std::chrono::milliseconds kLeastPatience{200};

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

Result<bus::ProfileReply> ask_for_profile(Session& session, const ProfileArguments& arguments) {
  std::string attachment;
  auto load = make_load(session, arguments.load, attachment);
  if (!load) return load.error();
  return session.ask<bus::ProfileReply>(
      bus::TakeProfile{std::move(*load), arguments.worker, arguments.device, arguments.again}, std::move(attachment));
}

}  // namespace

Result<int> run_profile(Session& session, ProfileArguments arguments) {
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
  return kExitOk;
}

Result<int> run_profile_list(Session& session, const ProfileArguments& arguments) {
  const auto reply = session.ask<bus::ProfilesReply>(bus::ListProfiles{arguments.load.plugin});
  if (!reply) return reply.error();
  return session.print(to_json(*reply), list_profiles(*reply));
}

}  // namespace freeride::ctl
