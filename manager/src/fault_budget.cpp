#include "fault_budget.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>

#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kHourNs = 3600 * kNsPerSec, kHourMs = kHourNs / kNsPerMs;
constexpr size_t kMostFaults = 10'000;
constexpr size_t kShownHash = 12, kLeastHash = 6;

std::string shown(const char* scope, const std::string& name) {
  if (std::string_view(scope) == "plugin") return "plugin content " + name.substr(0, kShownHash);
  return std::string(scope) + " " + in_quotes(name);
}

std::string command(const std::string& scope, const std::string& name) {
  return "freeride-ctl faults --lift " + scope + "=" + (scope == "plugin" ? name.substr(0, kShownHash) : name);
}

}  // namespace

const char* FaultBudget::name_of(Scope scope) {
  switch (scope) {
    case Scope::kPlugin:
      return "plugin";
    case Scope::kUser:
      return "user";
    case Scope::kJob:
      return "job";
  }
  return "";
}

const std::string& FaultBudget::key_of(Scope scope, const FaultRow& fault) {
  switch (scope) {
    case Scope::kPlugin:
      return fault.sha256;
    case Scope::kUser:
      return fault.user;
    case Scope::kJob:
      break;
  }
  return fault.job;
}

uint32_t FaultBudget::limit_of(Scope scope) const {
  switch (scope) {
    case Scope::kPlugin:
      return limits_.of_plugin;
    case Scope::kUser:
      return limits_.of_user;
    case Scope::kJob:
      break;
  }
  return limits_.of_job;
}

Status FaultBudget::restore(int64_t unix_ms) {
  auto faults = store_.faults();
  if (!faults) return faults.error();
  auto blocks = store_.fault_blocks();
  if (!blocks) return blocks.error();
  for (FaultRow& row : *faults) {
    const int64_t age_ms = std::clamp<int64_t>(unix_ms - row.unix_ms, 0, kHourMs);
    faults_.push_back({std::move(row), clock_.now_ns() - age_ms * kNsPerMs});
  }
  blocks_ = std::move(*blocks);
  ++version_;
  return {};
}

bool FaultBudget::is_old(const Fault& fault) const {
  return clock_.now_ns() - fault.since_ns >= kHourNs;
}

uint32_t FaultBudget::count(Scope scope, const std::string& key) const {
  return static_cast<uint32_t>(std::count_if(faults_.begin(), faults_.end(), [&](const Fault& fault) {
    return key_of(scope, fault.row) == key && !is_old(fault);
  }));
}

void FaultBudget::forget_old() {
  std::erase_if(faults_, [&](const Fault& fault) { return is_old(fault); });
  if (faults_.size() > kMostFaults) faults_.erase(faults_.begin());
}

bool FaultBudget::note(const FaultRow& fault) {
  forget_old();
  faults_.push_back({fault, clock_.now_ns()});
  bool more = false;
  std::map<std::pair<std::string, std::string>, int64_t> fresh;
  for (const Scope scope : kScopes) {
    const std::string& key = key_of(scope, fault);
    const uint32_t limit = limit_of(scope), times = count(scope, key);
    if (key.empty() || limit == 0 || times < limit) continue;
    if (!blocks_.try_emplace({name_of(scope), key}, fault.unix_ms).second) continue;
    fresh[{name_of(scope), key}] = fault.unix_ms;
    more = true;
    ++version_;
    spdlog::error(
        "{} is blocked on all workers: {} GPU faults within an hour, the last one of task {}; lift it with: {}",
        shown(name_of(scope), key), times, fault.task, command(name_of(scope), key));
  }
  // Dates may be out of order: on the disk at least those stay that count.
  const auto oldest = std::min_element(faults_.begin(), faults_.end(),
                                       [](const Fault& a, const Fault& b) { return a.row.unix_ms < b.row.unix_ms; });
  if (auto saved = store_.add_fault(fault, fresh, oldest->row.unix_ms - 1); !saved) trouble_.say(saved.error());
  return more;
}

std::optional<std::string> FaultBudget::blocked(const std::string& sha256, const std::string& user,
                                                const std::string& job) const {
  FaultRow one;
  one.sha256 = sha256;
  one.user = user;
  one.job = job;
  for (const Scope scope : kScopes) {
    const std::string& key = key_of(scope, one);
    if (key.empty() || blocks_.count({name_of(scope), key}) == 0) continue;
    return shown(name_of(scope), key) +
           " has faulted GPUs too often; see freeride-ctl faults, an operator lifts it with: " +
           command(name_of(scope), key);
  }
  return std::nullopt;
}

bus::FaultsReply FaultBudget::list() const {
  std::map<std::pair<std::string, std::string>, bus::FaultCount> counts;
  const auto at = [&](const std::string& scope, const std::string& name) -> bus::FaultCount& {
    bus::FaultCount& one = counts[{scope, name}];
    one.scope = scope;
    one.name = name;
    return one;
  };
  for (const Fault& one_of_them : faults_) {
    const FaultRow& fault = one_of_them.row;
    if (is_old(one_of_them)) continue;
    for (const Scope scope : kScopes) {
      const std::string& key = key_of(scope, fault);
      if (key.empty()) continue;
      bus::FaultCount& one = at(name_of(scope), key);
      ++one.faults;
      one.last_unix_ms = fault.unix_ms;
      one.last_task = fault.task;
    }
  }
  for (const auto& [key, since] : blocks_) at(key.first, key.second).blocked_unix_ms = since;
  bus::FaultsReply reply;
  for (auto& [key, one] : counts) {
    for (const Scope scope : kScopes) {
      if (one.scope == name_of(scope)) one.limit = limit_of(scope);
    }
    reply.counts.push_back(std::move(one));
  }
  return reply;
}

Status FaultBudget::lift(const std::string& scope, const std::string& name) {
  if (std::none_of(std::begin(kScopes), std::end(kScopes), [&](Scope one) { return scope == name_of(one); }))
    return Error{Code::kInvalidArgument, "faults are counted by plugin, user and job, not by " + in_quotes(scope), {}};
  std::vector<std::string> found;
  for (const auto& [key, since] : blocks_) {
    if (key.first != scope) continue;
    const bool begins = scope == "plugin" && name.size() >= kLeastHash && key.second.rfind(name, 0) == 0;
    if (key.second == name || begins) found.push_back(key.second);
  }
  if (found.empty())
    return Error{Code::kNotFound, "no " + scope + " " + in_quotes(name) + " is blocked", "see freeride-ctl faults"};
  if (found.size() > 1)
    return Error{Code::kInvalidArgument, "several blocked plugins begin with " + name, "name more digits"};
  if (auto removed = store_.remove_fault_block(scope, found.front()); !removed) return removed;
  blocks_.erase({scope, found.front()});
  ++version_;
  // Counted anew, of this one alone: others that share the faults keep theirs.
  for (auto& [fault, since_ns] : faults_) {
    for (const Scope one : kScopes) {
      if (scope != name_of(one) || key_of(one, fault) != found.front()) continue;
      if (one == Scope::kPlugin) fault.sha256.clear();
      if (one == Scope::kUser) fault.user.clear();
      if (one == Scope::kJob) fault.job.clear();
    }
  }
  spdlog::warn("{}: the block for GPU faults is lifted", shown(scope.c_str(), found.front()));
  return {};
}

}  // namespace freeride::manager
