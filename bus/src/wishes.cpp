#include "wishes.hpp"

#include <algorithm>

#include "freeride/bus/events.hpp"

namespace freeride::bus::detail {
namespace {

constexpr std::string_view kBubbles = "bubble.";

bool begins_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool is_of_bubbles(std::string_view prefix) {
  return begins_with(kBubbles, prefix) || begins_with(prefix, kBubbles);
}

}  // namespace

const std::vector<std::string>& always_of_hosts() {
  static const std::vector<std::string> kPrefixes = {
      std::string(TrainingState::kTopic) + "/", std::string(TrainingIteration::kTopic) + "/",
      std::string(TaskProgress::kTopic) + "/", std::string(PluginState::kTopic) + "/"};
  return kPrefixes;
}

const std::vector<std::string>& always_of_managers() {
  static const std::vector<std::string> kPrefixes = {std::string(TaskState::kTopic) + "/",
                                                     std::string(WorkerState::kTopic) + "/",
                                                     std::string(JobMeasures::kTopic) + "/"};
  return kPrefixes;
}

bool is_host_topic(std::string_view topic) {
  const auto& always = always_of_hosts();
  return begins_with(topic, kBubbles) || std::any_of(always.begin(), always.end(), [&](const std::string& prefix) {
           return begins_with(topic, prefix);
         });
}

void Wishes::add(std::string_view prefix, int connection) {
  if (is_of_bubbles(prefix) && (wishes_.size() <= kMost || wishes_.find(prefix) != wishes_.end()))
    wishes_[std::string(prefix)].insert(connection);
}

void Wishes::drop(std::string_view prefix, int connection) {
  const auto it = wishes_.find(prefix);
  if (it != wishes_.end() && (connection < 0 || it->second.count(connection) != 0)) wishes_.erase(it);
}

std::set<std::string> Wishes::of_bubbles() const {
  std::set<std::string> found;
  for (const auto& [prefix, connections] : wishes_) {
    if (begins_with(kBubbles, prefix) || wishes_.size() > kMost) return {std::string(kBubbles)};
    found.insert(prefix);
  }
  return found;
}

}  // namespace freeride::bus::detail
