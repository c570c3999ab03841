#include "submit.hpp"

#include <csignal>
#include <filesystem>
#include <iostream>

#include "exit_code.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "render.hpp"
#include "task_data.hpp"

namespace freeride::ctl {
namespace {

constexpr int kSignalled = 128;  // as a shell says it

// A manager of an earlier version sees a load without a plugin.
Error explained(const Error& error) {
  if (error.code != Code::kInvalidArgument || error.message.rfind("no plugin is named", 0) != 0) return error;
  return {Code::kVersion, "this manager is of an earlier version, which runs plugins only", "upgrade freeride-manager"};
}

int code_of(const bus::Verdict& verdict) {
  if (verdict.exit_code >= 0) return verdict.exit_code;
  if (verdict.signal > 0) return kSignalled + verdict.signal;
  if (verdict.kind == "finished") return kExitOk;
  return verdict.kind == "rejected" ? kExitRejected : kExitFailed;
}

void say(const std::string& text) {
  std::cerr << "freeride-ctl: " << printable(text) << "\n" << std::flush;
}

// The log of one start after the other, until the verdict.
Result<int> follow(Session& session, const std::string& task) {
  for (;;) {
    const auto log = print_log(session, {task, true, false}, 0);
    const auto now = session.ask<bus::TaskReply>(bus::ShowTask{task});
    if (interrupted()) {
      say("detached; task " + task + " goes on: freeride-ctl logs -f " + task + ", or freeride-ctl stop " + task);
      return kSignalled + SIGINT;
    }
    if (!now) return now.error();
    const bus::Verdict& verdict = now->task.state.verdict;
    if (!verdict.kind.empty()) {
      if (verdict.kind != "finished") say("task " + task + " " + verdict.kind + ": " + verdict.reason);
      return code_of(verdict);
    }
    if (!log) return log.error();
    if (!pause_for(std::chrono::milliseconds(300))) continue;
  }
}

}  // namespace

Result<int> run_submit(Session& session, const SubmitArguments& arguments) {
  LoadArguments wish = arguments.load;
  wish.no_profile = true;
  std::string none;
  auto load = make_load(session, wish, none);
  if (!load) return load.error();
  load->program = arguments.program;
  std::string& name = load->program.front();
  if (name.find('/') != std::string::npos) {
    std::error_code ignored;
    name = std::filesystem::absolute(name, ignored).lexically_normal().string();
  }
  if (wish.dry_run) {
    const auto plan = session.ask<bus::LoadPlan>(bus::PlanLoad{*load});
    if (!plan) return explained(plan.error());
    session.out() << (session.json() ? dump(to_json(*plan), 2) + "\n" : render_load_plan(*plan));
    return plan->fits ? kExitOk : kExitRejected;
  }
  const auto reply = session.ask<bus::TaskReply>(*load);
  if (!reply) return explained(reply.error());
  if (arguments.no_wait) {
    session.out() << (session.json() ? dump(to_json(*reply), 2) + "\n" : render_task_line(reply->task.state));
    return kExitOk;
  }
  catch_interrupts();
  say("task " + reply->task.state.task + " submitted; Ctrl-C detaches from it");
  return follow(session, reply->task.state.task);
}

}  // namespace freeride::ctl
