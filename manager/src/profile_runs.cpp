#include "profile_runs.hpp"

#include <algorithm>

#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kFollowPatience = 3 * kNsPerSec / 2;  // then a follower is answered though nothing has changed
constexpr int64_t kEndedKept = 60 * kNsPerSec;
constexpr size_t kMaxEnded = 64, kMaxFollowers = 64;

}  // namespace

ProfileRun* ProfileRuns::find(const std::string& name) {
  const auto found = runs_.find(name);
  return found == runs_.end() ? nullptr : &found->second;
}

const bus::ProfileReply* ProfileRuns::ended(const std::string& name) const {
  const auto found = ended_.find(name);
  return found == ended_.end() ? nullptr : &found->second.reply;
}

bool ProfileRuns::any_on(const std::string& worker) const {
  return std::any_of(runs_.begin(), runs_.end(), [&](const auto& run) { return run.second.worker == worker; });
}

ProfileRun& ProfileRuns::add(ProfileRun run) {
  run.name = "profile-" + run.key.substr(0, 12) + "-" + std::to_string(started_ns_ % 1'000'000) + "-" +
             std::to_string(++count_);
  run.started_ns = clock_.now_ns();
  return runs_[run.name] = std::move(run);
}

ProfileRun ProfileRuns::take_out(const std::string& name) {
  return std::move(runs_.extract(name).mapped());
}

bus::ProfileReply ProfileRuns::reply_of(const ProfileRun& run) const {
  bus::ProfileReply reply;
  reply.run = run.name;
  reply.state = run.state;
  reply.worker = run.worker;
  reply.steps = run.steps;
  const Worker* worker = workers_.find(run.worker);
  const bool trained = worker != nullptr && !worker->ranks.empty();
  if (run.state == "starting") {
    reply.reason = "being started";
  } else if (run.steps == 0) {
    reply.reason = trained ? "being initialised, then waiting for bubbles" : "being initialised";
  }
  return reply;
}

void ProfileRuns::follow(Ticket ticket, const bus::FollowProfile& follow) {
  if (const bus::ProfileReply* last = ended(follow.run)) return outside_.answer(ticket, Reply(*last));
  ProfileRun* run = find(follow.run);
  if (run == nullptr) {
    return outside_.answer(
        ticket, Error{Code::kNotFound,
                      "there is no profile run " + in_quotes(follow.run) + "; the manager may have been restarted",
                      "profile again"});
  }
  run->followed_ns = clock_.now_ns();
  if (run->state != follow.state || run->steps != follow.steps || run->followers.size() >= kMaxFollowers)
    return outside_.answer(ticket, Reply(reply_of(*run)));
  run->followers.push_back({ticket, follow.state, follow.steps, clock_.now_ns()});
}

void ProfileRuns::tell_followers(ProfileRun& run) {
  std::vector<Follower> waiting;
  for (Follower& follower : run.followers) {
    const bool news = follower.state != run.state || follower.steps != run.steps;
    if (!news && clock_.now_ns() - follower.since_ns < kFollowPatience) {
      waiting.push_back(std::move(follower));
      continue;
    }
    run.followed_ns = clock_.now_ns();  // it is about to ask again
    outside_.answer(follower.ticket, Reply(reply_of(run)));
  }
  run.followers = std::move(waiting);
}

void ProfileRuns::tell_end(const ProfileRun& run, bus::ProfileReply reply) {
  for (const Follower& follower : run.followers) outside_.answer(follower.ticket, Reply(reply));
  if (!run.asked && run.followers.empty()) return;
  ended_[run.name] = {std::move(reply), clock_.now_ns()};
  while (ended_.size() > kMaxEnded) {
    ended_.erase(std::min_element(ended_.begin(), ended_.end(),
                                  [](const auto& a, const auto& b) { return a.second.ended_ns < b.second.ended_ns; }));
  }
}

void ProfileRuns::mark_lost(const Worker& worker, bool same) {
  for (auto& [name, run] : runs_) {
    if (run.worker == worker.name && worker.tasks.count(name) == 0 && (!same || run.seen_ns != 0)) run.lost = true;
  }
}

void ProfileRuns::excuse(int64_t now_ns) {
  for (auto& [name, run] : runs_) {
    if (run.seen_ns != 0) run.seen_ns = std::max(run.seen_ns, now_ns);
  }
}

void ProfileRuns::excuse_orders(int64_t now_ns) {
  for (auto& [name, run] : runs_) run.create_sent_ns = std::max(run.create_sent_ns, now_ns);
}

void ProfileRuns::forget_ended(int64_t now) {
  std::erase_if(ended_, [now](const auto& one) { return now - one.second.ended_ns > kEndedKept; });
}

}  // namespace freeride::manager
