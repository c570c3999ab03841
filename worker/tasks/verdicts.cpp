#include "tasks/verdicts.hpp"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "freeride/pages.h"
#include "freeride/pages/names.hpp"
#include "tasks/report_reader.hpp"

namespace freeride::worker {
namespace {

// CUDA's texts and names of the errors that leave a context unusable: the GPU has recovered from a fault.
constexpr const char* kFaultWords[] = {
    "an illegal memory access was encountered",
    "cudaErrorIllegalAddress",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "an illegal instruction was encountered",
    "cudaErrorIllegalInstruction",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "misaligned address",
    "cudaErrorMisalignedAddress",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "invalid program counter",
    "cudaErrorInvalidPc",
    "CUDA_ERROR_INVALID_PC",
    "invalid address space",
    "cudaErrorInvalidAddressSpace",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "hardware stack error",
    "cudaErrorHardwareStackError",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "unspecified launch failure",
    "cudaErrorLaunchFailure",
    "CUDA_ERROR_LAUNCH_FAILED",
    "device-side assert",
    "cudaErrorAssert",
    "CUDA_ERROR_ASSERT",
    "cudaErrorMpsClientTerminated",
    "CUDA_ERROR_MPS_CLIENT_TERMINATED",
};

}  // namespace

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

bool may_continue(const policy::Verdict& verdict) {
  switch (verdict.kind) {
    case policy::VerdictKind::kNone:
    case policy::VerdictKind::kFinished:
    case policy::VerdictKind::kStopped:
    case policy::VerdictKind::kReplaced:
    case policy::VerdictKind::kRejected:
      return false;
    case policy::VerdictKind::kEvicted:
    case policy::VerdictKind::kOverran:
    case policy::VerdictKind::kOutOfMemory:
    case policy::VerdictKind::kCrashed:
    case policy::VerdictKind::kFailed:
    case policy::VerdictKind::kLost:
      break;
  }
  return verdict.transition != pages::transition_name(FREERIDE_IN_RESTORE);
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
  out.gpu_fault = verdict.gpu_fault || tells_gpu_fault(verdict);
  return out;
}

bool tells_gpu_fault(const policy::Verdict& verdict) {
  const auto tells = [](const std::string& text) {
    return std::any_of(std::begin(kFaultWords), std::end(kFaultWords),
                       [&](const char* words) { return text.find(words) != std::string::npos; });
  };
  return tells(verdict.message) || std::any_of(verdict.evidence.begin(), verdict.evidence.end(), tells);
}

}  // namespace freeride::worker
