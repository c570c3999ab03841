#include "tasks/verdicts.hpp"

#include <nlohmann/json.hpp>

#include "tasks/report_reader.hpp"

namespace freeride::worker {

policy::Verdict verdict_of(const nlohmann::json& message) {
  policy::Verdict verdict;
  verdict.kind = policy::kind_of(text_in(message, "kind")).value_or(policy::VerdictKind::kFailed);
  if (!verdict.ended()) verdict.kind = policy::VerdictKind::kFailed;
  verdict.cause = policy::cause_of(text_in(message, "cause")).value_or(policy::Cause::kNone);
  verdict.message = text_in(message, "reason");
  verdict.transition = text_in(message, "transition");
  verdict.signal = static_cast<int32_t>(number_in(message, "signal", 0));
  verdict.exit_code = static_cast<int32_t>(number_in(message, "exit_code", -1));
  verdict.limit = text_in(message, "limit");
  verdict.evidence = texts_in(message, "evidence", policy::Verdict::kMostEvidence);
  return verdict;
}

bus::Verdict to_bus(const policy::Verdict& verdict, const std::string& log_tail) {
  bus::Verdict out;
  out.kind = policy::kind_name(verdict.kind);
  out.reason = verdict.message;
  out.transition = verdict.transition;
  out.signal = verdict.signal;
  out.limit = verdict.limit;
  out.log_tail = log_tail;
  out.cause = policy::cause_name(verdict.cause);
  out.exit_code = verdict.exit_code;
  out.evidence = verdict.evidence;
  return out;
}

std::string text_of(const policy::Verdict& verdict) {
  std::string text = policy::kind_name(verdict.kind);
  if (!verdict.transition.empty()) text += " in " + verdict.transition;
  if (!verdict.message.empty()) text += ": " + verdict.message;
  if (!verdict.limit.empty()) text += " (limit: " + verdict.limit + ")";
  return text;
}

}  // namespace freeride::worker
