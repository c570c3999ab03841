#include "rank_book.hpp"

#include <algorithm>
#include <iterator>

#include "freeride/base/clock.hpp"
#include "freeride/policy/rank_why.hpp"
#include "phase_book.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr size_t kMostText = 64;

}  // namespace

void RankBook::see(const bus::TrainingState& rank, const std::string& host, int64_t now_ns) {
  const bool there = rank.state != "gone" && rank.state != "lost";
  const auto found = rows_.find({rank.job, rank.rank});
  if (!there && (found == rows_.end() || !found->second.there || found->second.state.worker != rank.worker)) return;
  Row& row = found == rows_.end() ? rows_[{rank.job, rank.rank}] : found->second;
  if (!row.there && found != rows_.end()) --away_;
  row.state = rank;
  row.state.state = bounded(rank.state, kMostText);
  row.state.why = bounded(rank.why, kMostText);
  row.state.phase = bounded(rank.phase, PhaseBook::kMostNameBytes);
  row.host = host;
  row.there = true;
  row.heard_ns = now_ns;
  if (!there) leave(row, now_ns);
}

void RankBook::lose(const bus::TrainingState& rank, int64_t now_ns) {
  const auto found = rows_.find({rank.job, rank.rank});
  if (found == rows_.end() || !found->second.there || found->second.state.worker != rank.worker) return;
  found->second.state.state = "lost";
  found->second.state.why = policy::rank_why_name(policy::RankWhy::kWorkerLost);
  leave(found->second, now_ns);
}

void RankBook::leave(Row& row, int64_t now_ns) {
  row.there = false;
  row.state.phase.clear();
  row.gone_ns = now_ns;
  if (++away_ > kMostAway) drop_oldest();
}

void RankBook::drop_oldest() {
  const auto since = [](const auto& entry) { return entry.second.there ? INT64_MAX : entry.second.gone_ns; };
  rows_.erase(
      std::min_element(rows_.begin(), rows_.end(), [&](const auto& a, const auto& b) { return since(a) < since(b); }));
  --away_;
}

void RankBook::forget_old(int64_t now_ns) {
  if (away_ == 0) return;
  for (auto first = rows_.begin(); first != rows_.end();) {
    const auto end =
        std::find_if(first, rows_.end(), [&](const auto& e) { return e.first.first != first->first.first; });
    const bool over = std::all_of(first, end, [](const auto& e) { return e.second.state.state == "gone"; });
    while (first != end) {
      const Row& row = first->second;
      const bool old = !row.there && (over || now_ns - row.gone_ns > kForgetAfterNs);
      away_ -= old ? 1 : 0;
      first = old ? rows_.erase(first) : std::next(first);
    }
  }
}

std::vector<bus::RankInfo> RankBook::list(const std::string& job, int64_t now_ns) const {
  std::vector<bus::RankInfo> ranks;
  for (auto row = job.empty() ? rows_.begin() : rows_.lower_bound({job, 0}); row != rows_.end(); ++row) {
    if (!job.empty() && row->first.first != job) break;
    ranks.push_back({row->second.state, row->second.host, (now_ns - row->second.heard_ns) / kNsPerMs});
  }
  return ranks;
}

std::vector<std::string> RankBook::jobs() const {
  std::vector<std::string> jobs;
  for (const auto& [key, row] : rows_) {
    if (jobs.empty() || jobs.back() != key.first) jobs.push_back(key.first);
  }
  return jobs;
}

}  // namespace freeride::manager
