#include "drains.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "freeride/base/names.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr const char* kJob = "job";
constexpr const char* kDevice = "device";
constexpr const char* kHost = "host";
constexpr const char* kAll = "all";  // scope and name: every device there is, and those to come
constexpr size_t kMostName = kMaxPlainName + std::string_view("4294967295/").size();  // a job's has its owner before it

std::string host_of(const Worker& worker) {
  return worker.name.substr(0, worker.name.rfind(':'));
}

// A worker tells root's jobs and those of its own user without an owner. Here they have this manager's user as one:
// what is drained without an owner is every user's.
std::string owned(const std::string& job) {
  return owner_size(job) == 0 ? job_of(geteuid(), job) : job;
}

}  // namespace

Status Drains::restore() {
  auto drained = store_.drains();
  if (!drained) return drained.error();
  drained_ = std::move(*drained);
  return {};
}

bool Drains::is_of(const Worker& worker, const Key& key) const {
  const std::string &scope = key.first, &name = key.second;
  if (scope == kAll) return true;
  if (scope == kDevice) return worker.name == name;
  if (scope == kHost) return host_of(worker) == name;
  return std::any_of(worker.ranks.begin(), worker.ranks.end(),
                     [&](const auto& rank) { return means_job(name, owned(rank.job)); });
}

// "gpt", "cpu-0", "host-1a2b3c4d:cpu-0", "host"; with "job:", "device:" or "host:" before it where two things are
// called so. "all" is everything, whatever else is called so.
Result<Drains::Key> Drains::meant(const std::string& subject, bool drained_only) const {
  if (subject == kAll || subject == std::string(kAll) + ":" + kAll) {
    if (!drained_only || drained_.contains({kAll, kAll})) return Key{kAll, kAll};
    return Error{Code::kNotFound, "not everything is drained", "see freeride-ctl workers, and name what is"};
  }
  std::string scope, name = subject;
  for (const char* one : {kJob, kDevice, kHost}) {
    const std::string prefix = std::string(one) + ":";
    if (subject.rfind(prefix, 0) == 0) scope = one, name = subject.substr(prefix.size());
  }
  if (!is_plain(name, kMostName))
    return Error{Code::kInvalidArgument, in_quotes(subject) + " is no job, device or host", {}};
  // What was drained in these words is meant by them, whatever has come since.
  if (const Key exactly{scope, name}; drained_.contains(exactly)) return exactly;
  std::set<Key> found;
  const auto is = [&](const char* one) { return scope.empty() || scope == one; };
  for (const auto& [worker_name, worker] : workers_.all()) {
    if (is(kDevice) && (worker.is_called(name) || worker.device == name)) found.insert({kDevice, worker_name});
    // What a host calls itself is its own word; its id is its key's.
    const bool host = host_of(worker) == name || (scope.empty() && worker.host == name);
    if (is(kHost) && host) found.insert({kHost, host_of(worker)});
    for (const auto& rank : worker.ranks) {
      if (is(kJob) && means_job(name, owned(rank.job))) found.insert({kJob, owned(rank.job)});
    }
  }
  for (const std::string& job : jobs_.names()) {
    if (is(kJob) && means_job(name, owned(job))) found.insert({kJob, owned(job)});
  }
  for (const auto& [key, number] : drained_) {
    const bool same = key.second == name || (key.first == kJob && means_job(name, key.second)) ||
                      (key.first == kDevice && key.second.size() > name.size() &&
                       key.second.compare(key.second.size() - name.size() - 1, std::string::npos, ":" + name) == 0);
    if (is(key.first.c_str()) && same) found.insert(key);
  }
  if (drained_only) std::erase_if(found, [&](const Key& key) { return drained_.count(key) == 0; });
  if (found.size() == 1) return *found.begin();
  // What is not there yet can be drained before it comes, if it is said what it is.
  if (found.empty() && !drained_only && (scope == kHost || scope == kJob)) return Key{scope, name};
  if (found.empty()) {
    return Error{
        Code::kNotFound,
        (drained_only ? "nothing that is drained is called " : "there is no job, device or host ") + in_quotes(subject),
        "see freeride-ctl workers"};
  }
  std::string all;
  for (const auto& [one, called] : found) all += (all.empty() ? "" : ", ") + one + ":" + called;
  return Error{Code::kInvalidArgument, "several things are called " + in_quotes(subject) + ": " + bounded(all, 512),
               "write one of these"};
}

void Drains::drain(Ticket ticket, const bus::Drain& wish, int64_t unix_ms) {
  auto key = meant(wish.subject, wish.follow);
  if (!key) return outside_.answer(ticket, key.error());
  if (!wish.follow) {
    if (drained_.size() >= most_ && drained_.count(*key) == 0) {
      return outside_.answer(
          ticket, Error{Code::kExhausted, std::to_string(most_) + " things are drained already", "uncordon some"});
    }
    uint64_t number = static_cast<uint64_t>(std::max<int64_t>(unix_ms, 1));
    for (const auto& [other, its] : drained_) number = std::max(number, its + 1);
    if (auto saved = store_.save_drain(key->first, key->second, number); !saved)
      return outside_.answer(ticket, saved.error());
    drained_[*key] = number;
    spdlog::info("{} is drained", key->first == kAll ? "everything" : key->first + " " + key->second);
    look_at_all();
  }
  outside_.answer(ticket, Reply(reply_of(*key)));
}

void Drains::uncordon(Ticket ticket, const std::string& subject) {
  auto key = meant(subject, true);
  if (!key) return outside_.answer(ticket, key.error());
  if (auto removed = store_.remove_drain(key->first, key->second); !removed)
    return outside_.answer(ticket, removed.error());
  drained_.erase(*key);
  spdlog::info("{} is given back", key->first == kAll ? "everything" : key->first + " " + key->second);
  look_at_all();
  outside_.answer(ticket, Reply(reply_of(*key)));
}

void Drains::look_at(Worker& worker) {
  uint64_t number = 0;
  const auto look_for = [&](const char* scope, const std::string& name) {
    const auto its = drained_.find({scope, name});
    if (its != drained_.end()) number = std::max(number, its->second);
  };
  if (!drained_.empty()) {
    look_for(kAll, kAll);
    look_for(kDevice, worker.name);
    look_for(kHost, host_of(worker));
    // One that was drained before its first run has no owner in its name.
    for (auto at = drained_.lower_bound({kJob, {}}); at != drained_.end() && at->first.first == kJob; ++at) {
      if (is_of(worker, at->first)) number = std::max(number, at->second);
    }
  }
  if (number == worker.drain) return;
  worker.drain = number;
  workers_.changed();
  worker.plan_due = true;
}

void Drains::look_at_all() {
  for (auto& [name, worker] : workers_.all()) look_at(worker);
}

bus::DrainReply Drains::reply_of(const Key& key) const {
  bus::DrainReply reply;
  reply.scope = key.first;
  reply.name = key.second;
  for (const auto& [name, worker] : workers_.all()) {
    if (!is_of(worker, key)) continue;
    bus::DrainedWorker one;
    one.worker = name;
    if (worker.drain == 0) {
      one.state = "open";
    } else if (!worker.up()) {
      one.state = "unknown";
      one.reason = std::string("its worker is ") + (worker.state == Worker::State::kDown ? "down" : "lost") +
                   ", so nobody has looked; side tasks end with their worker, or when their orders expire";
    } else if (worker.drained >= worker.drain) {
      one.state = "empty";
    } else {
      one.state = "draining";
      one.reason = worker.not_empty.empty() ? "its worker has not answered yet" : worker.not_empty;
    }
    reply.workers.push_back(std::move(one));
  }
  return reply;
}

}  // namespace freeride::manager
