#include "wishes.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "freeride/bus/device_alarm.hpp"

namespace freeride::bus::detail {
namespace {

constexpr std::string_view kBubbles = "bubble.";

bool begins_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool is_of(const std::vector<std::string>& families, std::string_view prefix) {
  return std::any_of(families.begin(), families.end(), [&](const std::string& family) {
    return begins_with(family, prefix) || begins_with(prefix, family);
  });
}

struct Host {
  std::set<std::string> wanted;
  std::function<void()> changed;
};
std::mutex hosts_mutex;
std::map<std::string, Host>& hosts() {
  static std::map<std::string, Host> hosts;
  return hosts;
}

}  // namespace

const std::vector<std::string>& of_bubbles() {
  static const std::vector<std::string> kPrefixes = {std::string(kBubbles)};
  return kPrefixes;
}

const std::vector<std::string>& always_of_hosts() {
  static const std::vector<std::string> kPrefixes = {
      std::string(TrainingState::kTopic) + "/", std::string(TrainingIteration::kTopic) + "/",
      std::string(TaskProgress::kTopic) + "/",  std::string(PluginState::kTopic) + "/",
      std::string(GpuFault::kTopic) + "/",      std::string(DeviceAlarm::kTopic) + "/"};
  return kPrefixes;
}

const std::vector<std::string>& always_of_managers() {
  static const std::vector<std::string> kPrefixes = {
      std::string(TaskState::kTopic) + "/",   std::string(WorkerState::kTopic) + "/",
      std::string(JobMeasures::kTopic) + "/", std::string(TrainingPlan::kTopic) + "/",
      std::string(CommandDone::kTopic) + "/", std::string(BatchState::kTopic) + "/"};
  return kPrefixes;
}

bool is_host_topic(std::string_view topic) {
  const auto& always = always_of_hosts();
  return begins_with(topic, kBubbles) || std::any_of(always.begin(), always.end(), [&](const std::string& prefix) {
           return begins_with(topic, prefix);
         });
}

void Wishes::add(std::string_view prefix, int connection) {
  if (is_of(families_, prefix) && (wishes_.size() <= kMost || wishes_.find(prefix) != wishes_.end()))
    wishes_[std::string(prefix)].insert(connection);
}

void Wishes::drop(std::string_view prefix, int connection) {
  const auto it = wishes_.find(prefix);
  if (it != wishes_.end() && (connection < 0 || it->second.count(connection) != 0)) wishes_.erase(it);
}

std::set<std::string> Wishes::wanted() const {
  if (wishes_.size() > kMost) return {families_.begin(), families_.end()};
  std::set<std::string> found;
  for (const auto& [prefix, connections] : wishes_) {
    for (const std::string& family : families_) {
      if (begins_with(family, prefix)) found.insert(family);
      if (begins_with(prefix, family)) found.insert(prefix);
    }
  }
  // What a whole family covers is not asked for beside it.
  for (const std::string& family : families_) {
    if (found.count(family) == 0) continue;
    std::erase_if(found, [&](const std::string& one) { return one != family && begins_with(one, family); });
  }
  return found;
}

void WishesOfHost::set(const std::string& endpoint, std::set<std::string> prefixes) {
  const std::lock_guard lock(hosts_mutex);
  Host& host = hosts()[endpoint];
  host.wanted = std::move(prefixes);
  if (host.changed) host.changed();
}

std::set<std::string> WishesOfHost::get(const std::string& endpoint) {
  const std::lock_guard lock(hosts_mutex);
  return hosts()[endpoint].wanted;
}

void WishesOfHost::follow(const std::string& endpoint, std::function<void()> changed) {
  const std::lock_guard lock(hosts_mutex);
  hosts()[endpoint].changed = std::move(changed);
}

bool WishesOfHost::followed(const std::string& endpoint) {
  const std::lock_guard lock(hosts_mutex);
  const auto host = hosts().find(endpoint);
  return host != hosts().end() && host->second.changed != nullptr;
}

}  // namespace freeride::bus::detail
