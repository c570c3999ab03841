// ReportReader: what a task's supervisor tells this worker: a plugin's process has started, and how it ended.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/policy/verdict.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {

/// Main thread. Reads datagrams of JSON from a socket whose other end a supervisor holds; what is none is left out.
class ReportReader {
 public:
  struct Calls {
    /// The plugin's process, and its scratch folder, which may be invalid.
    std::function<void(Fd process, Fd scratch)> started;
    /// `peak_resident_bytes`: of the process; 0: not known.
    std::function<void(policy::Verdict verdict, int64_t peak_resident_bytes)> verdict;
  };
  ReportReader(Fd socket, Loop& loop, Calls calls);
  ~ReportReader();
  ReportReader(const ReportReader&) = delete;
  ReportReader& operator=(const ReportReader&) = delete;

  /// Errors: it cannot be waited for.
  Status start();
  /// Takes what is there now.
  void read();

 private:
  Fd socket_;
  Loop& loop_;
  Calls calls_;
  bool watched_ = false;
};

/// A value of a JSON object from outside; bounded, and "", `otherwise` or nothing where there is none of the kind.
std::string text_in(const nlohmann::json& object, const char* key);
int64_t number_in(const nlohmann::json& object, const char* key, int64_t otherwise);
std::vector<std::string> texts_in(const nlohmann::json& object, const char* key, size_t most);

}  // namespace freeride::worker
