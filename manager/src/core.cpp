#include "core.hpp"

#include <algorithm>
#include <memory>
#include <new>

namespace freeride::manager {
namespace {

constexpr int64_t kTick = kNsPerSec;
constexpr int64_t kIdleTick = 10 * kNsPerSec;
constexpr int64_t kAnnounceAfter = 300 * kNsPerMs;  // our publisher has found the broker by then

JobConfig job_config(const CoreConfig& config) {
  JobConfig job = config.job;
  job.most_ranks = config.limits.ranks_of_job();
  return job;
}

}  // namespace

Core::Core(const CoreConfig& config, std::unique_ptr<StateStore> store, Outside& outside, const Clock& clock,
           std::function<int64_t()> unix_ms)
    : config_(config),
      store_(std::move(store)),
      outside_(outside),
      clock_(clock),
      trouble_(clock),
      tasks_(*store_, outside, clock, trouble_, std::move(unix_ms), config.history),
      jobs_(*store_, outside, clock, trouble_, job_config(config)),
      usage_(
          *store_, clock, trouble_, [this](const std::string& job) { return jobs_.measures(job); },
          config.account_half_life_ns),
      workers_(outside, clock, tasks_, jobs_, due_, config.limits.workers),
      copies_(tasks_, workers_),
      orders_(outside, clock),
      profiles_(*store_, trouble_),
      runs_(outside, clock, workers_),
      capacity_(tasks_, workers_, runs_, profiles_, config.default_memory_bytes),
      contents_(config.paths, clock, tasks_, workers_, runs_),
      faults_(*store_, clock, trouble_, config.faults),
      check_(tasks_, jobs_, runs_, capacity_, faults_, copies_, config_.limits),
      load_planner_({workers_, jobs_, capacity_, profiles_, contents_, check_}),
      replacements_({outside, clock, tasks_, workers_, orders_, contents_, capacity_, profiles_, check_, due_}),
      lifecycle_({clock, tasks_, workers_, jobs_, usage_, copies_, contents_, replacements_, capacity_, faults_, due_,
                  config_}),
      plans_(tasks_, workers_, jobs_, runs_, copies_, orders_, config_.orders),
      profiler_({clock, tasks_, workers_, orders_, runs_, profiles_, contents_, capacity_, lifecycle_, due_, config_}),
      scheduler_({clock, tasks_, usage_, workers_, orders_, capacity_, profiles_, profiler_, lifecycle_, faults_, due_,
                  config_}),
      task_commands_(
          {clock, outside, tasks_, workers_, orders_, contents_, check_, copies_, lifecycle_, scheduler_, due_}),
      profile_commands_({outside, clock, workers_, runs_, profiles_, contents_, capacity_, check_, profiler_}),
      task_data_(outside, tasks_, workers_, orders_),
      drains_(*store_, outside, workers_, jobs_, config.limits.drains()),
      batches_({outside, clock, *store_, trouble_, tasks_, workers_, contents_, check_, task_commands_, due_}),
      listings_(config_, outside, clock, tasks_, workers_, jobs_, copies_),
      started_ns_(clock.now_ns()),
      last_tick_ns_(started_ns_),
      next_tick_ns_(started_ns_) {}

Result<std::unique_ptr<Core>> Core::start(const CoreConfig& config, std::unique_ptr<StateStore> store, Outside& outside,
                                          const Clock& clock, std::function<int64_t()> unix_ms) {
  std::unique_ptr<Core> core(new Core(config, std::move(store), outside, clock, std::move(unix_ms)));
  if (auto restored = core->restore(); !restored) return restored.error();
  return core;
}

Status Core::restore() {
  if (auto tasks = tasks_.restore(policy::place_again_ns(started_ns_, config_.orders)); !tasks) return tasks;
  if (auto profiles = profiles_.restore(); !profiles) return profiles;
  if (auto faults = faults_.restore(tasks_.unix_ms()); !faults) return faults;
  if (auto drains = drains_.restore(); !drains) return drains;
  if (auto batches = batches_.restore(); !batches) return batches;
  if (auto usage = usage_.restore(tasks_.unix_ms()); !usage) return usage;
  return jobs_.restore();
}

// ---- from clients

void Core::load(Ticket ticket, const std::string& request_id, const bus::Load& load, std::string attachment) {
  with_content(ticket, load, std::move(attachment), [=, this](const bus::Load& meant, bool) {
    task_commands_.load(ticket, request_id, meant);
    tick_soon();
  });
}

void Core::load_later(Ticket ticket, const std::string& request_id, const bus::Load& load, std::string attachment) {
  with_content(ticket, load, std::move(attachment), [=, this](const bus::Load& meant, bool waited) {
    if (!waited) return task_commands_.load_later(ticket, request_id, meant);
    task_commands_.load(ticket, request_id, meant);
    tick_soon();
  });
}

// A whole content is read, hashed and written elsewhere: meanwhile others are served.
void Core::with_content(Ticket ticket, const bus::Load& load, std::string attachment,
                        std::function<void(const bus::Load& meant, bool waited)> then) {
  const size_t bytes = attachment.size();
  auto job = contents_.taking(load, std::move(attachment));
  if (!job) return outside_.answer(ticket, job.error());
  if (!*job) return then(load, false);
  const auto sha256 = std::make_shared<Result<std::string>>(std::string());
  outside_.in_background([=, job = std::move(*job)] { *sha256 = job(); },
                         [=, this, load = load]() mutable {
                           if (*sha256 && !(*sha256)->empty()) load.sha256 = **sha256;
                           if (*sha256) {
                             then(load, true);
                           } else {
                             outside_.answer(ticket, sha256->error());
                           }
                           contents_.taken(*sha256 ? **sha256 : "", bytes);
                         });
}

void Core::load_waiting() {
  if (task_commands_.load_waiting()) tick_soon();
}

void Core::plan_load(Ticket ticket, const bus::Load& load) {
  with_content(ticket, load, {}, [=, this](const bus::Load& meant, bool) {
    auto plan = load_planner_.plan(meant);
    if (!plan) return outside_.answer(ticket, plan.error(), {});
    outside_.answer(ticket, Reply(std::move(*plan)), {});
  });
}

void Core::replace(Ticket ticket, const std::string& request_id, const std::string& task, const bus::Load& load,
                   std::string attachment) {
  const auto id_of = [this](const std::string& name) {
    const Task* found = tasks_.latest(name);
    return found == nullptr ? -1 : found->row.id;
  };
  with_content(ticket, load, std::move(attachment), [=, this, id = id_of(task)](const bus::Load& meant, bool) {
    // Whoever may replace the one need not be let do so to another that has taken its name meanwhile.
    if (id_of(task) != id) {
      return outside_.answer(
          ticket, Error{Code::kNotFound, "the task " + task + " ended while its new content was taken in", {}});
    }
    replacements_.replace(ticket, request_id, task, meant);
    scheduler_.run();
    tick_soon();
  });
}

void Core::show(Ticket ticket, const std::string& task) {
  task_commands_.show(ticket, task);
  tick_soon();
}

void Core::take_profile(Ticket ticket, const bus::TakeProfile& wish, std::string attachment) {
  with_content(ticket, wish.load, std::move(attachment), [=, this, wish = wish](const bus::Load& meant, bool) mutable {
    wish.load = meant;
    profile_commands_.take(ticket, wish);
    tick_soon();
  });
}

void Core::stop_profile(Ticket ticket, const std::string& run) {
  profile_commands_.stop(ticket, run);
  plans_.send_due();
}

void Core::list_faults(Ticket ticket) {
  outside_.answer(ticket, Reply(faults_.list()), {});
}

void Core::lift_faults(Ticket ticket, const bus::LiftFaults& wish) {
  if (auto lifted = faults_.lift(wish.scope, wish.name); !lifted) return outside_.answer(ticket, lifted.error(), {});
  list_faults(ticket);
  due_.raised = true;
  scheduler_.run();
}

void Core::read_log(Ticket ticket, const bus::ReadLog& wish) {
  task_data_.read_log(ticket, wish);
  tick_soon();
}

void Core::read_file(Ticket ticket, const bus::ReadFile& wish) {
  task_data_.read_file(ticket, wish);
  tick_soon();
}

void Core::read_plugin(Ticket ticket, const bus::ReadPlugin& wish) {
  task_data_.read_plugin(ticket, wish);
  tick_soon();
}

void Core::drain(Ticket ticket, const bus::Drain& wish) {
  drains_.drain(ticket, wish, tasks_.unix_ms());
  plans_.send_due();
  tick_soon();
}

void Core::usage(Ticket ticket, const bus::GetUsage& wish) {
  if (auto asked = usage_.ask(ticket, wish); !asked) outside_.answer(ticket, asked.error());
}

void Core::go_on() {
  scheduler_.run();
  auto done = usage_.go_on();
  if (!done) return;
  // Sorting millions of tasks would hold up everybody else.
  const auto answer = std::make_shared<Usage::Answer>(std::move(*done));
  const auto reply = std::make_shared<Result<Reply>>(Error{});
  outside_.in_background(
      [=] {
        try {
          *reply = answer->sum ? Result<Reply>(answer->sum->reply()) : Result<Reply>(answer->sum.error());
        } catch (const std::bad_alloc&) {
          *reply = Error{Code::kExhausted, "the manager has no memory left for so much usage", "ask for fewer days"};
        }
      },
      [=, this] {
        usage_.answered();
        for (const Ticket ticket : answer->tickets) outside_.answer(ticket, *reply);
      },
      true);
}

void Core::uncordon(Ticket ticket, const std::string& subject) {
  drains_.uncordon(ticket, subject);
  plans_.send_due();
  due_.raised = true;
  scheduler_.run();
}

void Core::submit_batch(Ticket ticket, const bus::SubmitBatch& wish, std::string attachment) {
  with_content(ticket, wish.load, std::move(attachment), [=, this, wish = wish](const bus::Load& meant, bool) mutable {
    wish.load = meant;
    batches_.submit(ticket, wish);
    scheduler_.run();
    tick_soon();
  });
}

void Core::remove_batch(Ticket ticket, const std::string& name) {
  batches_.remove(ticket, name);
  tick_soon();
}

std::optional<std::string> Core::user_of_task(const std::string& name) const {
  const Task* task = tasks_.latest(name);
  if (task == nullptr) return std::nullopt;
  return task->load().user;
}

std::optional<std::string> Core::user_of_profile(const std::string& run) const {
  const auto found = runs_.all().find(run);
  if (found == runs_.all().end()) return std::nullopt;
  return found->second.user;
}

// ---- from workers

void Core::register_worker(Ticket ticket, const std::string& peer, const bus::RegisterWorker& news, bool here) {
  const auto registered = workers_.register_worker(peer, news, here);
  if (!registered) return outside_.answer(ticket, registered.error());
  Worker& worker = *registered->worker;
  drains_.look_at(worker);
  const bool same = registered->same;
  take_tasks(worker, false);
  // A new process has none of the old one's tasks. The same one may not have seen our latest CreateTask yet.
  lifecycle_.requeue_missing(worker, "worker " + worker.name + (same ? " has it no more" : " was restarted"), !same);
  runs_.mark_lost(worker, same);
  worker.plan_due = false;  // the answer is the plan
  batches_.look();
  bus::WorkerPlan plan = plans_.of(worker);
  plan.work = batches_.work_of(worker);
  outside_.answer(ticket, Reply(std::move(plan)));
  feed_members(&worker);
  workers_.publish(worker);
  scheduler_.run();
  tick_soon();
}

void Core::worker_report(Ticket ticket, const std::string& peer, const bus::WorkerReport& report) {
  const auto taken = workers_.take_report(peer, report);
  if (!taken) return outside_.answer(ticket, taken.error());
  Worker& worker = **taken;
  drains_.look_at(worker);
  jobs_.take_measures(report);
  usage_.add(report, tasks_.unix_ms());
  take_tasks(worker, report.leaving || report.ending);
  batches_.look(std::any_of(report.tasks.begin(), report.tasks.end(),
                            [](const bus::TaskReport& task) { return !task.verdict.kind.empty(); }));
  bus::WorkerPlan plan = plans_.renewal_of(worker);
  plan.work = batches_.work_of(worker);
  outside_.answer(ticket, Reply(std::move(plan)));
  feed_members(&worker);
  if (report.leaving) worker_gone(worker, Worker::State::kDown, "worker " + worker.name + " went down", false);
  workers_.publish(worker);
  scheduler_.run();
}

// What a look at the batches has handed out to members on other workers than the one that has its answer: with their
// next report it would come up to a second later.
void Core::feed_members(const Worker* answered) {
  for (const std::string& name : batches_.take_fed()) {
    const Worker* worker = workers_.find(name);
    if (worker != nullptr && worker != answered && worker->up()) plans_.send_work(*worker, batches_.work_of(*worker));
  }
}

void Core::take_tasks(Worker& worker, bool leaving) {
  for (const auto& [name, report] : worker.tasks) tasks_.see_epoch(report.epoch);
  for (const auto& [name, report] : worker.tasks) {
    if (report.purpose == "profile") {
      profiler_.take_report(worker, report, leaving);
    } else {
      lifecycle_.take_report(worker, report, leaving);
    }
  }
}

void Core::worker_gone(Worker& worker, Worker::State state, const std::string& reason, bool count) {
  workers_.gone(worker, state);
  lifecycle_.requeue_all(worker.name, reason, count);
  workers_.publish(worker);
}

void Core::write_plugin(Ticket ticket, const std::string& account, const bus::WritePlugin& wish,
                        const std::string& piece) {
  auto received = contents_.receive(account, wish, piece);
  if (!received) return outside_.answer(ticket, received.error());
  bus::FileReply reply;
  reply.kind = "file";
  reply.bytes = wish.bytes;
  reply.next = received->there;
  reply.more = reply.next < wish.bytes;
  if (!received->kept) return outside_.answer(ticket, Reply(std::move(reply)));
  const auto sha256 = std::make_shared<Result<std::string>>(std::string());
  outside_.in_background([=, job = std::move(received->kept)] { *sha256 = job(); },
                         [=, this] {
                           contents_.received(wish);
                           if (!*sha256) return outside_.answer(ticket, sha256->error());
                           outside_.answer(ticket, Reply(reply));
                         });
}

void Core::fetch_plugin(Ticket ticket, const bus::FetchPlugin& wish) {
  const auto bytes = std::make_shared<Result<std::string>>(std::string());
  outside_.in_background([=, job = contents_.piece(wish)] { *bytes = job(); },
                         [=, this] {
                           if (!*bytes) return outside_.answer(ticket, contents_.explained(wish, bytes->error()));
                           outside_.answer(ticket, Reply(bus::Ack{}), **bytes);
                         },
                         true);
}

void Core::worker_reply(const std::string& peer, const std::string& id, const std::optional<Error>& error,
                        const std::string& log, const Reply* data, const std::string& bytes) {
  const auto pending = orders_.answered(peer, id);
  if (!pending) return;
  switch (pending->kind) {
    case Pending::Kind::kData:
      return task_data_.reply(*pending, error, data, bytes);
    case Pending::Kind::kLog:
      return task_commands_.log_reply(*pending, error, log);
    case Pending::Kind::kOrder:
      if (error) workers_.plan_is_due(pending->worker);
      return;
    case Pending::Kind::kPlan:
      return plans_.reply(pending->worker, id, error);
    case Pending::Kind::kCreate:
      if (!pending->profile.empty()) return profiler_.create_reply(pending->profile, error);
      scheduler_.create_reply(*pending, error);
      if (!error && batches_.feed_new(pending->task)) feed_members(nullptr);
      return;
    case Pending::Kind::kReplace:
      return replacements_.reply(*pending, error);
  }
}

// ---- the clock's part

void Core::tick(bool behind) {
  const int64_t now = clock_.now_ns();
  excuse_own_stall(now, behind);
  announce();
  expire_orders(now);
  for (Worker* worker : workers_.silent(config_.worker_timeout_ns))
    worker_gone(*worker, Worker::State::kLost, "worker " + worker->name + " was lost", true);
  lifecycle_.requeue_silent(now);
  scheduler_.retry_creates(now);
  profiler_.expire(now);
  profile_commands_.look_at_followers(now);
  task_commands_.stop_over_time();
  batches_.look();
  feed_members(nullptr);
  batches_.save_progress();
  tasks_.forget();
  workers_.forget_old(now);
  jobs_.forget_old();
  contents_.drop_unneeded(now);
  plans_.replan_jobs(now, now - config_.worker_timeout_ns);
  due_.raised = true;  // free memory moves without an event
  scheduler_.run();
  plans_.send_due();
  jobs_.publish_changed();
  tasks_.save_unsaved(now);
  jobs_.save(now);
  usage_.save();
  const bool busy = workers_.any_up() || !orders_.empty() || !tasks_.live().empty() || !runs_.all().empty();
  next_tick_ns_ = !announced_ ? started_ns_ + kAnnounceAfter : now + (busy ? kTick : kIdleTick);
}

// If the manager itself was held up (stopped, swapped, suspended) or has more to do than it can, nobody's silence
// meanwhile means anything. Else an overload would have all workers lost, all tasks placed again, all orders sent
// again, and grow by that.
void Core::excuse_own_stall(int64_t now, bool behind) {
  if (behind || now - last_tick_ns_ > std::max(config_.worker_timeout_ns / 2, 2 * kTick)) {
    workers_.excuse(now - kTick);
    tasks_.excuse(now - kTick);
    runs_.excuse(now - kTick);
  }
  if (behind) {  // what was held up and has caught up has read all answers
    orders_.excuse(now - kTick);
    tasks_.excuse_orders(now - kTick);
    runs_.excuse_orders(now - kTick);
  }
  last_tick_ns_ = now;
}

// A broker that has just been started knows nothing: what it keeps for late joiners comes from here.
void Core::announce() {
  if (announced_ || clock_.now_ns() - started_ns_ < kAnnounceAfter) return;
  announced_ = true;
  tasks_.publish_all();
  jobs_.publish_all();
}

// What asked for a creation or a replacement sends it again by itself.
void Core::expire_orders(int64_t now) {
  for (const auto& [id, pending] : orders_.take_expired(now)) {
    switch (pending.kind) {
      case Pending::Kind::kData:
        task_data_.unanswered(pending);
        break;
      case Pending::Kind::kLog:
      case Pending::Kind::kOrder:
        task_commands_.unanswered(pending);
        break;
      case Pending::Kind::kPlan:
        plans_.unanswered(pending.worker, id);
        break;
      case Pending::Kind::kCreate:
      case Pending::Kind::kReplace:
        break;
    }
  }
}

void Core::tick_soon() {
  next_tick_ns_ = std::min(next_tick_ns_, clock_.now_ns() + kTick);
}

void Core::flush() {
  tasks_.flush();
  jobs_.flush();
  usage_.flush();
  batches_.save_progress();
}

}  // namespace freeride::manager
