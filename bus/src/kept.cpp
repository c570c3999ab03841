#include "kept.hpp"

#include "freeride/bus/codec.hpp"
#include "freeride/bus/events.hpp"
#include "unpack.hpp"

namespace freeride::bus::detail {

bool is_kept_topic(std::string_view topic) {
  static constexpr std::string_view kFamilies[] = {TaskState::kTopic,     WorkerState::kTopic, PluginState::kTopic,
                                                   TrainingState::kTopic, JobMeasures::kTopic, BatchState::kTopic};
  for (const std::string_view family : kFamilies) {
    if (topic.size() > family.size() && topic[family.size()] == '/' && topic.substr(0, family.size()) == family)
      return true;
  }
  return false;
}

std::optional<std::string> mark_kept(std::string_view payload) {
  Tree tree;
  if (!tree.parse(payload) || !check_version(tree)) return std::nullopt;
  const auto& map = tree.root().via.map;
  Buffer buffer;
  Packer packer(buffer);
  const msgpack::object* flag = tree.find("kept");
  packer.pack_map(map.size + (flag == nullptr ? 1 : 0));
  for (uint32_t i = 0; i < map.size; ++i) {
    packer.pack(map.ptr[i].key);
    if (&map.ptr[i].val == flag) {
      packer.pack_true();
    } else {
      packer.pack(map.ptr[i].val);
    }
  }
  if (flag == nullptr) {
    pack_text(packer, "kept");
    packer.pack_true();
  }
  return buffer.str();
}

// Told to everybody once, and to no late joiner.
static bool is_removed(std::string_view topic, std::string_view payload) {
  const auto says = [&]<class State>(State*) {
    if (!topic.starts_with(State::kTopic) || payload.find(State::kRemoved) == payload.npos) return false;
    const auto state = decode<State>(payload);
    return state && state->state == State::kRemoved;
  };
  return says(static_cast<TaskState*>(nullptr)) || says(static_cast<BatchState*>(nullptr));
}

void KeptStates::update(std::string_view topic, std::string_view payload) {
  const std::string name(topic);
  if (auto found = by_topic_.find(name); found != by_topic_.end()) remove(found->second);
  if (is_removed(topic, payload)) return;
  entries_.push_back({name, std::string(payload)});
  by_topic_[name] = std::prev(entries_.end());
  bytes_ += topic.size() + payload.size();
  while (entries_.size() > 1 && (entries_.size() > max_topics_ || bytes_ > max_bytes_)) remove(entries_.begin());
}

void KeptStates::remove(std::list<Entry>::iterator entry) {
  bytes_ -= entry->topic.size() + entry->payload.size();
  by_topic_.erase(entry->topic);
  entries_.erase(entry);
}

void KeptStates::forget_if(const std::function<bool(const std::string&)>& which) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (which(entry->topic)) remove(entry);
    entry = next;
  }
}

void KeptStates::for_each(std::string_view prefix,
                          const std::function<void(const std::string&, const std::string&)>& visit) const {
  for (const Entry& entry : entries_) {
    if (entry.topic.compare(0, prefix.size(), prefix) == 0) visit(entry.topic, entry.payload);
  }
}

}  // namespace freeride::bus::detail
