#include "drain.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/bus/commands.hpp"
#include "interrupt.hpp"
#include "jobs.hpp"
#include "json.hpp"

namespace freeride::ctl {
namespace {

constexpr const char* kJob = "job";

std::string called(const bus::DrainReply& reply) {
  if (reply.scope == "all") return "everything";
  return reply.scope + " " + (reply.scope == kJob ? shown_job(reply.name) : reply.name);
}

// A job of another user as people write it, with "job:" before it or not.
std::string meant(const std::string& subject) {
  const std::string prefix = std::string(kJob) + ":";
  if (subject.rfind(prefix, 0) == 0) return prefix + job_argument(subject.substr(prefix.size()));
  return job_argument(subject);
}

constexpr std::chrono::milliseconds kLook{200};  // what a worker has found comes with its reports, once a second

void print(Session& session, const bus::DrainReply& reply) {
  if (session.json()) {
    session.out() << dump(to_json(reply), 2) << "\n";
    return;
  }
  for (const bus::DrainedWorker& one : reply.workers)
    session.out() << printable(one.worker + ": " + one.state + (one.reason.empty() ? "" : ", " + one.reason)) << "\n";
  if (reply.workers.empty())
    session.out() << printable(called(reply) + ": no worker has it now; drained from its start on") << "\n";
}

}  // namespace

Result<int> run_drain(Session& session, const std::string& subject, double for_s) {
  catch_interrupts();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(for_s);
  auto reply = session.ask<bus::DrainReply>(bus::Drain{meant(subject), false});
  if (!reply) return reply.error();
  const std::string exactly = reply->scope + ":" + reply->name;
  const auto any = [&](const char* state) {
    return std::any_of(reply->workers.begin(), reply->workers.end(),
                       [&](const auto& one) { return one.state == state; });
  };
  while (any("draining") && std::chrono::steady_clock::now() < end && pause_for(kLook)) {
    reply = session.ask<bus::DrainReply>(bus::Drain{exactly, true});
    if (!reply) return reply.error();
  }
  print(session, *reply);
  for (const bus::DrainedWorker& one : reply->workers) {
    if (one.state == "empty") continue;
    return Error{
        Code::kExhausted, "it is not known that " + one.worker + " is empty: " + one.reason,
        "it stays drained; ask again with the same command, give it back with freeride-ctl uncordon " + exactly};
  }
  return kExitOk;
}

Result<int> run_uncordon(Session& session, const std::string& subject) {
  const auto reply = session.ask<bus::DrainReply>(bus::Uncordon{meant(subject)});
  if (!reply) return reply.error();
  if (session.json()) {
    session.out() << dump(to_json(*reply), 2) << "\n";
  } else {
    session.out() << printable(called(*reply) + " is given back") << "\n";
  }
  return kExitOk;
}

}  // namespace freeride::ctl
