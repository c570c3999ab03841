// Replacements: tasks on their way from one content of their plugin to another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "loop/loop.hpp"
#include "tasks/side_task.hpp"
#include "tasks/state_file.hpp"

namespace freeride::worker {

/// The new content is created while the old one goes on; then the old one saves its state and stops, and the new one is
/// initialised and goes on from there. Whatever fails, one of them is left. Main thread.
class Replacements {
 public:
  /// What is asked of whoever has the tasks. It outlives this.
  class Host {
   public:
    virtual ~Host() = default;
    /// Who has the name; null: nobody.
    virtual SideTask* named(const std::string& name) = 0;
    /// Gives the name to another, which is there; returns who had it.
    virtual std::unique_ptr<SideTask> put(const std::string& name, std::unique_ptr<SideTask> task) = 0;
    /// Errors: the worker or the task is being stopped; there is no room for one more.
    virtual Status may_replace(const SideTask& task) = 0;
    virtual std::unique_ptr<SideTask> make(bus::CreateTask spec) = 0;
    virtual void launch(SideTask& task) = 0;
    /// Destroys one that has ended, later.
    virtual void retire(std::unique_ptr<SideTask> task) = 0;
    /// A content that is of no use here any more, unless somebody else uses it.
    virtual void drop_content(const std::string& sha256) = 0;
    virtual std::filesystem::path folder(const std::string& name) = 0;
    virtual void report_soon() = 0;
  };

  /// `init_ns`: the length of an init lease, and of a save lease.
  Replacements(Host& host, Loop& loop, int64_t init_ns) : host_(host), loop_(loop), init_ns_(init_ns) {}
  ~Replacements();

  /// Begins one of a task that runs. Repeating it does nothing. Errors: kAlreadyExists (another one is under way),
  /// those of may_replace(), or the state
  /// file cannot be made.
  Status begin(SideTask& old, bus::CreateTask spec);
  /// Something about one of its two contents may have changed.
  void look_at(const std::string& name);
  /// The same of all: events can be dropped.
  void look_at_all();
  /// run, pause or stop, for a task that is being replaced or not.
  Status order(SideTask& task, const std::string& order);
  /// The task is ended at once, and with it what was to take its place.
  void give_up(const std::string& name, const policy::Verdict& why);
  /// The content that is to take the place of the one that has the name; null: there is none.
  SideTask* next_of(const std::string& name);
  /// The worker is going down: what is stopping goes nowhere from here.
  void going_down() { going_down_ = true; }

  bool under_way(const std::string& name) const { return under_way_.count(name) != 0; }
  /// How many side tasks it has beside those with names.
  size_t count() const { return under_way_.size() + ending_.size(); }
  /// Whether none of those that were given up is still there.
  bool idle() const { return ending_.empty(); }
  /// One of those; null: none has this id.
  SideTask* find(uint64_t id);
  bool uses(const std::string& sha256) const;
  /// What it has to say in the task's report.
  void fill(bus::TaskReport& report) const;
  /// The name is a new task's from now on.
  void forget(const std::string& name) { done_.erase(name); }
  /// True: it was one of those without a name, and has gone.
  bool ended(const SideTask& task);

 private:
  /// In kCreating to kStopping the task is the old content and `next` the new one; from kStarting on the task is the
  /// new one.
  enum class Phase { kCreating, kSaving, kStopping, kStarting };
  struct Replacement {
    uint64_t revision = 0;
    Phase phase = Phase::kCreating;
    bus::CreateTask old_spec;
    std::unique_ptr<SideTask> next;
    std::unique_ptr<StateFile> file;
    bus::TaskCounters counters;  // of the old one, at its end
    std::string order = "run";   // what the user wants, from kStopping on
    bool stop_wanted = false;    // the user's, while the old one stops anyway
    Loop::Timer timer = 0;
  };
  void switch_over(Replacement& replacement, SideTask& old);
  void stop_old(Replacement& replacement, SideTask& old);
  void take_place(Replacement& replacement, SideTask& old);
  void fall_back(Replacement& replacement, const std::string& why);
  void finish(const std::string& name, const std::string& state, const std::string& reason);
  void cancel(const std::string& name, const std::string& why);
  void let_end(std::unique_ptr<SideTask> task);
  static const char* phase_name(Phase phase);

  Host& host_;
  Loop& loop_;
  const int64_t init_ns_;
  bool going_down_ = false;
  std::map<std::string, std::unique_ptr<Replacement>> under_way_;  // by the task's name
  std::map<std::string, bus::ReplacementReport> done_;             // how the latest one went
  std::vector<std::unique_ptr<SideTask>> ending_;                  // without a name any more, not yet ended
};

}  // namespace freeride::worker
