#include "orders.hpp"

#include <algorithm>

namespace freeride::manager {

Result<std::string> Orders::send(const Worker& worker, const Order& order, Pending about) {
  auto id = outside_.send(worker.peer, order);
  if (!id) return id;
  about.peer = worker.peer;
  about.worker = worker.name;
  about.sent_ns = clock_.now_ns();
  pending_[*id] = std::move(about);
  return id;
}

std::optional<Pending> Orders::answered(const std::string& peer, const std::string& id) {
  const auto found = pending_.find(id);
  // Only the one that was asked may answer. (A worker's address changes when it reconnects; then the order is simply
  // sent again.)
  if (found == pending_.end() || found->second.peer != peer) return std::nullopt;
  Pending pending = std::move(found->second);
  pending_.erase(found);
  return pending;
}

std::vector<std::pair<std::string, Pending>> Orders::take_expired(int64_t now) {
  std::vector<std::pair<std::string, Pending>> expired;
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (now - it->second.sent_ns < kOrderPatience) {
      ++it;
      continue;
    }
    expired.emplace_back(it->first, std::move(it->second));
    it = pending_.erase(it);
  }
  return expired;
}

void Orders::excuse(int64_t now_ns) {
  for (auto& [id, pending] : pending_) {
    const bool awaited = pending.kind == Pending::Kind::kLog || pending.kind == Pending::Kind::kData;
    if (!awaited) pending.sent_ns = std::max(pending.sent_ns, now_ns);
  }
}

}  // namespace freeride::manager
