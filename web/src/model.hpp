// What the page and /metrics show, made of bus events and of the manager's answers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "clock_map.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/device_alarm.hpp"

namespace freeride::web {

/// Bounds of what is kept, whoever publishes. What comes beyond them is left out and counted.
struct Limits {
  size_t ranks = 4096, tasks = 4096, workers = 4096, jobs = 256, batches = 512;
  size_t faults = 64, ends = 32, alarms = 1024;
  size_t phases = 1024;  ///< names of idle phases, of all jobs
  size_t notices = 200;
  size_t frame_bubbles = 4000;       ///< of one frame
  size_t lanes = 128;                ///< with more ranks than this, bubbles are not sent one by one
  int64_t gone_ns = 60'000'000'000;  ///< how long a rank that has ended is still shown
  /// How recent an event must be to count for more than an answer that does not name its subject: the answer may be
  /// older.
  int64_t fresh_ns = 5'000'000'000;
};

/// One training rank: a lane of the page.
struct Rank {
  uint32_t id = 0;  ///< the lane's number in frames
  bus::TrainingState state;
  std::deque<bus::TrainingIteration> recent;  ///< the last 20
  uint64_t iterations = 0;                    ///< these are sums since this program began to listen
  int64_t iteration_ns = 0, bubble_ns = 0, offered_ns = 0, harvested_ns = 0;
  int64_t ended_ns = 0;     ///< when its end was heard of; 0: it runs
  int64_t phase_since = 0;  ///< when the idle phase of its state began, µs since 1970; 0: not known
};

struct Task {
  uint32_t id = 0;  ///< its number in frames
  bus::TaskState state;
  std::string user;
  double steps_per_s = 0;
  uint64_t rate_steps = 0;
  int64_t rate_ns = 0;
  int64_t heard_ns = 0;  ///< the last event or answer about it
};

struct Worker {
  bus::WorkerInfo info;
  int64_t heard_ns = 0;
};

/// Execution past bubbles' ends in one job, since this program began to listen.
struct Overrun {
  uint64_t leases = 0;
  int64_t sum_ns = 0;
};

/// A name of idle phases.
struct Phase {
  uint32_t id = 0;  ///< its number in frames
};

/// What side tasks have said of one device, since this program began to listen.
struct DeviceAlarms {
  std::string host, device, serial, alarm;
  uint64_t count = 0;
};

/// A line of the page's list of events.
struct Notice {
  uint64_t id = 0;
  int64_t unix_ms = 0;
  std::string level;  ///< "info", "good", "warn" or "bad"
  std::string subject, text;
};

/// Not thread-safe. Never blocks, and takes no more memory than its limits allow, whatever comes.
class Model {
 public:
  explicit Model(Limits limits = {}) : limits_(limits) {}

  /// Takes in one event: topic and MessagePack payload as on the bus. `received_ns`: when it was received, in
  /// nanoseconds since 1970 of a clock that does not step. What cannot be read or is of no use is skipped.
  void on_event(const std::string& topic, std::string_view payload, int64_t received_ns);

  /// The manager's answers. They mend what lost events have left wrong.
  void on_status(const bus::StatusReply& answer, int64_t received_ns);
  void on_report(const bus::ReportReply& answer, int64_t received_ns);
  void on_faults(const bus::FaultsReply& answer);
  /// The manager does not answer; `why` is for people.
  void on_silence(const std::string& why);
  /// What comes is no news but a recording, in which so many seconds pass in one; 0: it stands at its end.
  void on_replay(double speed);

  /// What has changed since the last call, as a frame of the live stream (web/README.md); null: nothing.
  /// `with_entities` false: bubbles and iterations only, which change at every call.
  nlohmann::json changes(int64_t now_ns, bool with_entities);
  /// A frame with all that has been sent so far: with it, and the frames after it, a page knows everything.
  nlohmann::json snapshot(int64_t now_ns) const;

  bool wants_bubbles() const { return ranks_.size() <= limits_.lanes; }
  const std::map<std::string, Rank>& ranks() const { return ranks_; }
  /// Why its bubbles are used or not, as its worker says; empty: nothing was heard of that yet.
  std::string why_of(const Rank& rank) const;
  const std::map<std::string, Task>& tasks() const { return tasks_; }
  const std::map<std::string, Worker>& workers() const { return workers_; }
  const std::map<std::string, bus::JobMeasures>& jobs() const { return jobs_; }
  const std::map<std::string, bus::BatchState>& batches() const { return batches_; }
  const std::map<std::string, Overrun>& overruns() const { return overruns_; }
  const std::map<std::string, uint64_t>& ends() const { return ends_; }  ///< of tasks, by the verdict's kind
  const std::map<std::string, DeviceAlarms>& alarms() const { return alarms_; }
  const std::vector<bus::FaultCount>& faults() const { return faults_; }
  uint64_t gpu_faults() const { return gpu_faults_; }
  uint64_t unreadable() const { return unreadable_; }  ///< events that this version cannot read
  uint64_t left_out() const { return left_out_; }      ///< what the limits had no room for
  bool manager_up() const { return manager_up_; }
  const std::string& manager_version() const { return manager_version_; }

 private:
  using Entities = std::map<std::string, nlohmann::json>;

  void on_bubble(const bus::BubbleEnd& bubble, int64_t shift_ns);
  void on_phases(const bus::WorkerInfo& worker, int64_t received_ns);
  void on_iteration(const bus::TrainingIteration& iteration, int64_t shift_ns);
  void on_training(const bus::TrainingState& state, bool kept, int64_t said_ns, int64_t received_ns);
  void on_task(const bus::TaskState& state, bool kept, int64_t received_ns);
  void on_progress(const bus::TaskProgress& progress, int64_t t_ns);
  void on_worker(const bus::WorkerState& state, bool kept, int64_t received_ns);
  void on_batch(const bus::BatchState& state, bool kept, int64_t received_ns);
  void on_alarm(const bus::DeviceAlarm& alarm, int64_t received_ns);
  void on_plugin(const bus::PluginState& state, bool kept, int64_t received_ns);
  void notice(int64_t received_ns, std::string level, std::string subject, std::string text);
  void count_overrun(const std::string& job, const bus::TaskCounters& before, const bus::TaskCounters& after);
  template <class Map>
  auto* entry(Map& map, const std::string& key, size_t most);
  void forget_ended(int64_t now_ns);
  std::map<std::string, Entities> entities() const;

  Limits limits_;
  ClockMap clocks_;
  std::map<std::string, Rank> ranks_;
  std::map<std::string, Task> tasks_;
  std::map<std::string, Worker> workers_;
  std::map<std::string, bus::JobMeasures> jobs_;
  std::map<std::string, bus::BatchState> batches_;
  std::map<std::string, Phase> phases_;
  std::map<std::string, Overrun> overruns_;
  std::map<std::string, uint64_t> ends_;
  std::map<std::string, DeviceAlarms> alarms_;
  std::vector<bus::FaultCount> faults_;
  std::deque<Notice> notices_;
  bool manager_up_ = false, replay_ = false;
  double speed_ = 1;
  std::string manager_version_, manager_why_ = "not asked yet";
  uint64_t gpu_faults_ = 0, unreadable_ = 0, left_out_ = 0, next_id_ = 0, next_notice_ = 0, sent_notice_ = 0;
  std::vector<int64_t> bubbles_, iterations_;  // flat, absolute microseconds
  std::map<std::string, Entities> sent_;
};

}  // namespace freeride::web
