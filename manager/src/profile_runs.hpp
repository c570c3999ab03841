// ProfileRuns: the profiles that are being taken, and the clients that follow them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/bus/commands.hpp"
#include "outside.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Someone who follows a profile run, and is answered when there is something new.
struct Follower {
  Ticket ticket = 0;
  std::string state;  ///< as it knows it
  uint64_t steps = 0;
  int64_t since_ns = 0;
};

/// A profile being taken. It runs on its worker as a task of its own, under a name of its own.
struct ProfileRun {
  std::string name, key, worker, plugin, sha256, user;
  std::map<std::string, std::string> params;
  uint64_t epoch = 0;
  int64_t started_ns = 0, create_sent_ns = 0, memory_bytes = 0;
  int64_t seen_ns = 0;  ///< when the worker took it, or last reported it; 0: not yet
  bool lost = false, network = false;
  bus::Load load;  ///< of it give_files() counts
  uint64_t wanted_steps = 0;
  bool asked = false;       ///< by a client, who follows it; else it is for tasks in the queue alone
  int64_t followed_ns = 0;  ///< when that client was last heard of
  std::vector<Follower> followers;
  std::string state = "starting";
  uint64_t steps = 0;
  bool cut_short = false;  ///< its worker goes down or its device is drained: what comes of it is no whole profile
};

/// Keeps the runs, answers their followers, and remembers for a minute how a run ended. One thread; never blocks.
class ProfileRuns {
 public:
  ProfileRuns(Outside& outside, const Clock& clock, const Workers& workers)
      : outside_(outside), clock_(clock), workers_(workers), started_ns_(clock.now_ns()) {}

  std::map<std::string, ProfileRun>& all() { return runs_; }  ///< by name
  const std::map<std::string, ProfileRun>& all() const { return runs_; }
  ProfileRun* find(const std::string& name);
  const bus::ProfileReply* ended(const std::string& name) const;  ///< nullptr: it has not, or long ago
  bool any_on(const std::string& worker) const;

  /// Keeps `run` under a new name.
  ProfileRun& add(ProfileRun run);
  /// The run is over; what is left of it is the caller's.
  ProfileRun take_out(const std::string& name);
  /// Tells the followers of a run that was taken out; kept for those who ask later, where a client asked for it.
  void tell_end(const ProfileRun& run, bus::ProfileReply reply);

  /// How far it is.
  bus::ProfileReply reply_of(const ProfileRun& run) const;
  void follow(Ticket ticket, const bus::FollowProfile& follow);
  /// Answers the followers for whom there is something new, or who have waited long enough.
  void tell_followers(ProfileRun& run);
  /// `worker` has registered: what it runs no longer is lost. `same`: it is the process that was known before, which
  /// may not have seen the latest CreateTask yet.
  void mark_lost(const Worker& worker, bool same);
  /// Counts every run that a worker has as seen at `now_ns` at least: the manager itself was held up.
  void excuse(int64_t now_ns);
  /// Counts every order for one as sent at `now_ns` at least: its answer may still wait to be read.
  void excuse_orders(int64_t now_ns);
  void forget_ended(int64_t now);

 private:
  struct EndedRun {
    bus::ProfileReply reply;
    int64_t ended_ns = 0;
  };
  Outside& outside_;
  const Clock& clock_;
  const Workers& workers_;
  int64_t started_ns_;
  uint32_t count_ = 0;
  std::map<std::string, ProfileRun> runs_;
  std::map<std::string, EndedRun> ended_;
};

}  // namespace freeride::manager
