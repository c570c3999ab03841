// What `load` and its kin ask for beyond a plugin and a place: files, variables, labels, an order among tasks, limits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"

namespace freeride::ctl {

struct LoadOptions {
  std::vector<std::string> read, write;  ///< SRC[:DST]
  std::string working_dir;
  std::vector<std::string> env;     ///< K=V
  std::vector<std::string> labels;  ///< k=v
  std::vector<std::string> after;   ///< afterok:TASK
  std::string restart;              ///< no, on-failure, on-failure:N
  std::string time;                 ///< a span
};

/// Sets what `options` ask for. A relative SRC is below the present folder; `here`: the files are to be on this host,
/// so one that this user cannot use is an error at once. Errors: kInvalidArgument, kNotFound, kPermission.
Status apply_options(const LoadOptions& options, bool here, bus::Load& load);

/// "SRC" or "SRC:DST", DST from its "/" on. Errors: kInvalidArgument.
Result<bus::FileGrant> parse_grant(const std::string& text, bool write);

/// Every combination of "rate=0.1,0.01" and "depth=2,4", the last one turning fastest. Errors: kInvalidArgument (no
/// "=", no value, a name twice, more than 1000 combinations).
Result<std::vector<std::map<std::string, std::string>>> combinations(const std::vector<std::string>& sweeps);

/// Which tasks "-l" means: "key=value" or "key", all of them. Errors: kInvalidArgument.
struct LabelWanted {
  std::string key;
  bool any = false;
  std::string value;
};
Result<std::vector<LabelWanted>> parse_labels_wanted(const std::vector<std::string>& texts);
bool has_labels(const bus::Load& load, const std::vector<LabelWanted>& wanted);

}  // namespace freeride::ctl
