#include "answers.hpp"

namespace freeride::bus::detail {

Answers::Known Answers::note(const std::string& id, const std::string& peer, int64_t now_ns) {
  expire(now_ns);
  if (auto found = entries_.find(id); found != entries_.end()) {
    found->second.peer = peer;
    return found->second.done ? Known::kAnswered : Known::kInProgress;
  }
  while (entries_.size() >= max_ids_) drop_oldest();
  Entry& entry = entries_[id];
  entry.order = ++next_order_;
  entry.peer = peer;
  ages_.push_back({now_ns, entry.order, id});
  return Known::kNew;
}

std::string Answers::peer(const std::string& id, const std::string& fallback) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? fallback : found->second.peer;
}

void Answers::answered(const std::string& id, const std::string& frame, bool has_attachment) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.done) return;
  if (has_attachment || frame.size() > kLargest) {
    entries_.erase(found);
    return;
  }
  found->second.done = true;
  found->second.frame = frame;
  bytes_ += frame.size();
  while (bytes_ > max_bytes_ && !ages_.empty()) drop_oldest();
}

void Answers::expire(int64_t now_ns) {
  while (!ages_.empty() && now_ns - ages_.front().at_ns > kLifeNs) drop_oldest();
}

void Answers::drop_oldest() {
  const auto found = entries_.find(ages_.front().id);
  if (found != entries_.end() && found->second.order == ages_.front().order) {
    bytes_ -= found->second.frame.size();
    entries_.erase(found);
  }
  ages_.pop_front();
}

}  // namespace freeride::bus::detail
