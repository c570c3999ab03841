#include "verdicts.hpp"

#include "text.hpp"

namespace freeride::manager {

bus::Verdict verdict_of(policy::VerdictKind kind, policy::Cause cause, std::string reason) {
  bus::Verdict verdict;
  verdict.kind = policy::kind_name(kind);
  verdict.cause = policy::cause_name(cause);
  verdict.reason = std::move(reason);
  return verdict;
}

policy::VerdictKind kind_of(const bus::Verdict& verdict) {
  return policy::kind_of(verdict.kind).value_or(policy::VerdictKind::kNone);
}

bus::Verdict checked(bus::Verdict verdict) {
  const auto kind = kind_of(verdict);
  // A replacement ends a content, not a task.
  if (kind == policy::VerdictKind::kNone || kind == policy::VerdictKind::kReplaced) {
    verdict.reason = "its worker gave the unknown verdict " + in_quotes(verdict.kind) + ": " + verdict.reason;
    verdict.kind = policy::kind_name(policy::VerdictKind::kFailed);
  }
  if (!policy::cause_of(verdict.cause)) verdict.cause.clear();
  verdict.reason = bounded(std::move(verdict.reason), kMaxReason);
  verdict.transition = bounded(std::move(verdict.transition), kMaxTaskName);
  verdict.limit = bounded(std::move(verdict.limit), kMaxReason);
  verdict.log_tail = tail(verdict.log_tail, kMaxLog);
  if (verdict.evidence.size() > policy::Verdict::kMostEvidence) verdict.evidence.resize(policy::Verdict::kMostEvidence);
  for (std::string& sign : verdict.evidence) sign = bounded(std::move(sign), kMaxReason);
  return verdict;
}

}  // namespace freeride::manager
