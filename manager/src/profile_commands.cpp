#include "profile_commands.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "freeride/base/names.hpp"
#include "text.hpp"
#include "wishes.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kAbandonedAfter = 10 * kNsPerSec;

bool fits(const bus::TakeProfile& wish, const Worker& worker, const policy::DeviceView& device) {
  if (!wish.worker.empty() && !worker.is_called(wish.worker)) return false;
  if (!wish.device.empty() && worker.device != wish.device) return false;
  if (worker.drain != 0 || !can_use_files(wish.load, worker)) return false;
  const auto& load = wish.load;
  if (load.stage < 0 && load.replica < 0 && load.job.empty()) return true;
  return std::any_of(device.ranks.begin(), device.ranks.end(), [&](const policy::AttachedRank& rank) {
    return (load.stage < 0 || static_cast<int64_t>(rank.stage) == load.stage) &&
           (load.replica < 0 || static_cast<int64_t>(rank.replica) == load.replica) &&
           (load.job.empty() || means_job(load.job, rank.job));
  });
}

}  // namespace

Result<std::vector<policy::ProfileDevice>> ProfileCommands::candidates(const bus::TakeProfile& wish) const {
  const auto views = the_.capacity.devices();
  if (!wish.worker.empty()) {
    const auto meant = the_.workers.called(wish.worker);
    if (meant.size() > 1) {
      return Error{Code::kInvalidArgument,
                   "several workers are called " + wish.worker + ": " + meant[0]->name + ", " + meant[1]->name +
                       (meant.size() > 2 ? ", ..." : ""),
                   "give one's whole name"};
    }
    const Worker* named = meant.empty() ? nullptr : meant.front();
    if (named == nullptr) {
      std::string known;
      for (const auto& view : views) known += (known.empty() ? "" : ", ") + view.worker;
      return Error{
          Code::kNotFound,
          "there is no worker " + in_quotes(wish.worker) + "; up: " + (known.empty() ? "none" : bounded(known, 512)),
          "see freeride-ctl workers"};
    }
    if (!named->up())
      return Error{Code::kUnavailable,
                   "worker " + wish.worker + " is " + (named->state == Worker::State::kDown ? "down" : "lost"),
                   "start freeride-worker there"};
  }
  if (views.empty()) {
    return Error{Code::kUnavailable, "no worker is up to profile on", "start one: freeride-worker --device cpu-0"};
  }
  auto found = the_.profiler.devices(views);
  std::erase_if(found, [&](const auto& one) { return !fits(wish, the_.workers.at(one.device.worker), one.device); });
  if (!found.empty()) return found;
  std::string what;
  if (!wish.load.files.empty()) what += " users' files to give";
  if (!wish.device.empty()) what += " device " + in_quotes(wish.device);
  if (wish.load.stage >= 0) what += " stage " + std::to_string(wish.load.stage);
  if (wish.load.replica >= 0) what += " replica " + std::to_string(wish.load.replica);
  if (!wish.load.job.empty()) what += " job " + in_quotes(wish.load.job);
  return Error{Code::kNotFound, "no worker that is up has" + what, "see freeride-ctl workers"};
}

void ProfileCommands::take(Ticket ticket, const bus::TakeProfile& wish) {
  const auto refuse = [&](const Error& error) { the_.outside.answer(ticket, error); };
  bus::Load load = wish.load;
  load.name.clear();
  if (!load.program.empty())
    return refuse({Code::kInvalidArgument, "a program has no steps to profile", "freeride-ctl submit -- PROGRAM ARGS"});
  if (auto checked = the_.check.check(load); !checked) return refuse(checked.error());
  // A stage that the job does not have is told from one whose trainer is not there yet; any job will do.
  if (load.stage >= 0 || load.replica >= 0 || !load.job.empty()) {
    if (auto checked = the_.check.check_place(load); !checked) return refuse(checked.error());
  }
  const auto there = candidates(wish);
  if (!there) return refuse(there.error());
  auto sha256 = the_.contents.resolve(load);
  if (!sha256) return refuse(sha256.error());
  if (auto free = the_.check.check_faults(*sha256, load.user); !free) {
    the_.contents.release(*sha256);
    return refuse(free.error());
  }
  const auto key_on = [&](const std::string& worker) {
    return ProfileBook::key_of(*sha256, ProfileBook::scope_of(load), the_.workers.at(worker).model);
  };
  for (const auto& one : *there) {
    const bus::Profile* known = the_.profiles.find(key_on(one.device.worker));
    if (wish.again || known == nullptr || known->sha256.empty()) continue;
    // Too few steps for this wish, or none at all.
    if (known->steps.count == 0 || load.steps > std::max(known->steps.count, known->wanted_steps)) continue;
    the_.contents.release(*sha256);
    bus::ProfileReply reply;
    reply.state = "done";
    reply.worker = known->worker;
    reply.steps = known->steps.count;
    reply.profiles = {*known};
    return the_.outside.answer(ticket, Reply(std::move(reply)));
  }
  for (const auto& [name, run] : the_.runs.all()) {
    const bool here = std::any_of(there->begin(), there->end(), [&, &taken = run](const auto& one) {
      return one.device.worker == taken.worker && taken.key == key_on(taken.worker);
    });
    if (here) return the_.outside.answer(ticket, Reply(the_.runs.reply_of(run)));
  }
  const auto place = policy::place_profile(*there, the_.capacity.cap_bytes(load), {});
  if (place.worker.empty()) {
    the_.contents.release(*sha256);
    return refuse(Error{Code::kExhausted, "cannot profile " + load.plugin + " now: " + place.reason,
                        "try again later, name another --worker, or declare less --memory"});
  }
  spdlog::info("profile of {} ({}) on {}", load.plugin, sha256->substr(0, 12), place.worker);
  const ProfileRun& run = the_.profiler.begin(load, *sha256, the_.workers.at(place.worker), load.steps, true);
  the_.outside.answer(ticket, Reply(the_.runs.reply_of(run)));
}

void ProfileCommands::stop(Ticket ticket, const std::string& name) {
  if (const bus::ProfileReply* last = the_.runs.ended(name)) return the_.outside.answer(ticket, Reply(*last));
  ProfileRun* run = the_.runs.find(name);
  if (run == nullptr)
    return the_.outside.answer(ticket, Error{Code::kNotFound, "there is no profile run " + in_quotes(name), {}});
  if (the_.profiler.wanted(*run) || !run->asked) {
    run->asked = false;
    return the_.outside.answer(ticket, Reply(the_.runs.reply_of(*run)));
  }
  the_.profiler.give_up(name, "stopped by the user");
  the_.outside.answer(ticket, Reply(*the_.runs.ended(name)));
}

void ProfileCommands::list(Ticket ticket, const bus::ListProfiles& wish) {
  the_.outside.answer(ticket, Reply(the_.profiles.list(wish)));
}

void ProfileCommands::look_at_followers(int64_t now) {
  std::vector<std::string> abandoned;
  for (auto& [name, run] : the_.runs.all()) {
    the_.runs.tell_followers(run);
    if (!run.asked || !run.followers.empty() || now - run.followed_ns < kAbandonedAfter) continue;
    if (the_.profiler.wanted(run)) {
      run.asked = false;
    } else {
      abandoned.push_back(name);
    }
  }
  for (const std::string& name : abandoned) the_.profiler.give_up(name, "nobody follows it any more");
  the_.runs.forget_ended(now);
}

}  // namespace freeride::manager
