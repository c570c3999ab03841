#include "ranks.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/policy/placement.hpp"
#include "freeride/policy/rank_why.hpp"
#include "jobs.hpp"
#include "json.hpp"

namespace freeride::ctl {
namespace {

using policy::RankWhy;

Tone tone_of(RankWhy why) {
  switch (why) {
    case RankWhy::kHarvesting:
      return Tone::kGood;
    case RankWhy::kFailed:
    case RankWhy::kDied:
    case RankWhy::kWorkerLost:
      return Tone::kBad;
    default:
      return Tone::kPlain;
  }
}

std::string meaning_of(const std::string& why) {
  const auto known = policy::rank_why_of(why);
  const std::string text = known == RankWhy::kNone ? "a reason that this freeride-ctl does not know: it is of an "
                                                     "earlier version than the rank's worker"
                                                   : policy::rank_why_text(known);
  return printable(why + ": " + text) + "\n";
}

// A manager of an earlier version lists the ranks of workers that are up, without reasons.
Result<bus::RanksReply> ranks_of_workers(Session& session, const std::string& job) {
  const auto workers = session.ask<bus::WorkersReply>(bus::ListWorkers{});
  if (!workers) return workers.error();
  bus::RanksReply all;
  std::set<std::string> jobs;
  for (const auto& worker : workers->workers) {
    for (const auto& rank : worker.ranks) {
      all.ranks.push_back({rank, worker.state.host, worker.silent_ms});
      jobs.insert(rank.job);
    }
  }
  if (job.empty()) return all;
  const auto meant = policy::meant_jobs(job, {jobs.begin(), jobs.end()});
  std::erase_if(all.ranks, [&](const bus::RankInfo& rank) {
    return std::find(meant.begin(), meant.end(), rank.state.job) == meant.end();
  });
  return all;
}

}  // namespace

std::string present_phase(const bus::RankInfo& rank) {
  if (rank.state.phase.empty()) return "";
  const int64_t ms = std::clamp<int64_t>(rank.state.phase_ms, 0, INT32_MAX) + std::max<int64_t>(0, rank.silent_ms);
  return rank.state.phase + " for " + human_ns(ms * kNsPerMs);
}

Listing list_ranks(const bus::RanksReply& ranks, const std::string& job) {
  // No column of what no rank has.
  const bool phases = std::any_of(ranks.ranks.begin(), ranks.ranks.end(),
                                  [](const bus::RankInfo& rank) { return !rank.state.phase.empty(); });
  std::vector<Column> columns{"JOB", {">RANK", "rank"}, "STAGE", "HOST", "DEVICE", "STATE"};
  if (phases) columns.emplace_back("PHASE");
  columns.emplace_back("REASON");
  Table table(std::move(columns));
  std::string meanings;
  std::set<std::string> said;
  bool guessed = false;
  for (const bus::RankInfo& rank : ranks.ranks) {
    const bus::TrainingState& state = rank.state;
    const std::string why = state.why.empty() ? policy::rank_why_name(RankWhy::kUntold) : state.why;
    const std::string stage = std::to_string(state.stage);
    guessed = guessed || state.guessed;
    std::vector<Cell> cells{{shown_job(state.job), state.job},
                            std::to_string(state.rank),
                            {stage + (state.guessed ? "?" : ""), state.guessed ? "" : stage},
                            rank.host,
                            state.device,
                            {state.state, state.state, state.state == "lost" ? Tone::kBad : Tone::kPlain}};
    if (phases) cells.emplace_back(or_dash(present_phase(rank)), state.phase);
    cells.emplace_back(why, why, tone_of(policy::rank_why_of(why)));
    table.add(std::move(cells));
    if (said.insert(why).second) meanings += meaning_of(why);
  }
  if (guessed)
    meanings += "stage with ?: nobody has told it; it is made from the rank's number (FREERIDE_STAGE tells it)\n";
  const std::string of = job.empty() ? "" : " of job " + printable(shown_job(job));
  return {std::move(table),
          "no rank" + of +
              " is known; one is here once its script runs through freeride.run, or calls freeride.attach(),\n"
              "beside a freeride-worker of its device. python -m freeride.observe says which bubbles a training has\n"
              "without one, and docs/trainers/not-hooked.md what may be in the way\n",
          meanings.empty() ? "" : "\n" + meanings};
}

Result<int> run_ranks(Session& session, const std::string& job) {
  const std::string meant = job_argument(job);
  auto reply = session.ask<bus::RanksReply>(bus::ListRanks{meant});
  if (!reply && reply.error().code == Code::kVersion) reply = ranks_of_workers(session, meant);
  if (!reply) return reply.error();
  for (auto& rank : reply->ranks) {
    if (rank.state.why.empty()) rank.state.why = policy::rank_why_name(RankWhy::kUntold);
  }
  return session.print(to_json(*reply), list_ranks(*reply, meant));
}

}  // namespace freeride::ctl
