// batch: a plugin over a list of items, in whatever bubbles there are.
#pragma once

#include <string>
#include <vector>

#include "verbs.hpp"

namespace freeride::ctl {

struct BatchArguments {
  LoadArguments load;
  std::string input, output, items;  ///< `items`: jsonl, text or files; empty: by what the input is
  uint32_t retries = 3;
  bool in_order = false, force = false, detach = false;
  std::vector<std::string> names;
};

/// Submits, and follows until the end. 0: every item has a result.
Result<int> run_batch(Session& session, BatchArguments arguments);
Result<int> run_batch_attach(Session& session, const std::string& name);
Result<int> run_batch_ls(Session& session);
Result<int> run_batch_rm(Session& session, const std::vector<std::string>& names);

}  // namespace freeride::ctl
