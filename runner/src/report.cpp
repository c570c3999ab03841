#include "report.hpp"

#include <sys/socket.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

namespace freeride::runner {
namespace {

using nlohmann::json;

template <class T>
void read(const json& from, const char* key, T& into) {
  const auto it = from.find(key);
  if (it != from.end() && it->is_number_integer()) into = it->get<T>();
}

std::string text(const json& from, const char* key) {
  const auto it = from.find(key);
  return it != from.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

json to_json(const Outcome& outcome) {
  const policy::Verdict& verdict = outcome.verdict;
  return {{"event", "verdict"},
          {"kind", policy::kind_name(verdict.kind)},
          {"cause", policy::cause_name(verdict.cause)},
          {"reason", verdict.message},
          {"transition", verdict.transition},
          {"signal", verdict.signal},
          {"exit_code", verdict.exit_code},
          {"limit", verdict.limit},
          {"evidence", verdict.evidence},
          {"threads_left", outcome.threads_left},
          {"threads_awake", outcome.threads_awake},
          {"processes_left", outcome.processes_left},
          {"step_p50_ns", outcome.step_p50_ns},
          {"step_p90_ns", outcome.step_p90_ns},
          {"step_max_ns", outcome.step_max_ns},
          {"peak_resident_bytes", outcome.peak_resident_bytes}};
}

Outcome outcome_of(const json& report) {
  Outcome outcome;
  policy::Verdict& verdict = outcome.verdict;
  verdict.kind = policy::kind_of(text(report, "kind")).value_or(policy::VerdictKind::kNone);
  verdict.cause = policy::cause_of(text(report, "cause")).value_or(policy::Cause::kNone);
  verdict.message = text(report, "reason");
  verdict.transition = text(report, "transition");
  read(report, "signal", verdict.signal);
  read(report, "exit_code", verdict.exit_code);
  verdict.limit = text(report, "limit");
  const auto evidence = report.find("evidence");
  if (evidence != report.end() && evidence->is_array()) {
    for (const json& seen : *evidence) {
      if (seen.is_string() && verdict.evidence.size() < policy::Verdict::kMostEvidence)
        verdict.evidence.push_back(seen.get<std::string>());
    }
  }
  read(report, "threads_left", outcome.threads_left);
  read(report, "threads_awake", outcome.threads_awake);
  read(report, "processes_left", outcome.processes_left);
  read(report, "step_p50_ns", outcome.step_p50_ns);
  read(report, "step_p90_ns", outcome.step_p90_ns);
  read(report, "step_max_ns", outcome.step_max_ns);
  read(report, "peak_resident_bytes", outcome.peak_resident_bytes);
  return outcome;
}

void Report::started(pid_t pid, std::initializer_list<int> fds) const {
  post({{"event", "started"}, {"pid", pid}}, fds);
}

void Report::verdict(const Outcome& outcome) const {
  post(to_json(outcome));
}

void Report::post(const json& message, std::initializer_list<int> fds) const {
  // A message can hold any bytes the plugin gave.
  std::string text = message.dump(-1, ' ', false, json::error_handler_t::replace);
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  if (fds.size() != 0) {
    packet.msg_control = control.data();
    packet.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* head = CMSG_FIRSTHDR(&packet);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), fds.begin(), fds.size() * sizeof(int));
  }
  sendmsg(fd_, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace freeride::runner
