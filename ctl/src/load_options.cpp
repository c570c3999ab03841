#include "load_options.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "freeride/policy/task_files.hpp"
#include "parse.hpp"

namespace freeride::ctl {
namespace {

constexpr size_t kMostCombinations = 1000;
constexpr uint32_t kRestarts = 3;

Error invalid(std::string message, std::string hint = {}) {
  return {Code::kInvalidArgument, std::move(message), std::move(hint)};
}

std::string plain(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

Status parse_restart(const std::string& text, bus::Load& load) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  load.restart = text.substr(0, colon);
  load.restarts_most = kRestarts;
  if (load.restart == "no" && colon == text.npos) return {};
  bool good = load.restart == "on-failure";
  if (good && colon != text.npos) {
    const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, load.restarts_most);
    good = error == std::errc() && stop == end && begin != end && load.restarts_most > 0;
  }
  if (good) return {};
  return invalid("--restart: '" + text + "' is no policy", "no, on-failure or on-failure:N");
}

Status check_here(const bus::FileGrant& file) {
  if (access(file.source.c_str(), file.write ? R_OK | W_OK : R_OK) == 0) return {};
  const char* option = file.write ? "--write" : "--read";
  return errno_error(std::string(option) + ": you cannot " + (file.write ? "write " : "read ") + file.source, errno,
                     "a task has its submitter's rights to files, and no more");
}

}  // namespace

Result<bus::FileGrant> parse_grant(const std::string& text, bool write) {
  bus::FileGrant file;
  file.write = write;
  const size_t colon = text.rfind(":/");
  const bool two = colon != text.npos && colon != 0;
  file.source = two ? text.substr(0, colon) : text;
  if (file.source.empty()) return invalid(std::string(write ? "--write" : "--read") + " names no path", "SRC[:DST]");
  std::error_code error;
  file.source = plain(std::filesystem::absolute(file.source, error).string());
  if (two) file.target = plain(text.substr(colon + 1));
  return file;
}

Status apply_options(const LoadOptions& options, bool here, bus::Load& load) {
  std::vector<policy::WantedFile> wanted;
  for (const auto* texts : {&options.read, &options.write}) {
    for (const std::string& text : *texts) {
      auto file = parse_grant(text, texts == &options.write);
      if (!file) return file.error();
      wanted.push_back({file->source, file->target, file->write});
      load.files.push_back(std::move(*file));
    }
  }
  if (auto s = policy::check_files(wanted); !s) return s;
  for (const bus::FileGrant& file : load.files) {
    if (!here) break;
    if (auto s = check_here(file); !s) return s;
  }
  load.working_dir = options.working_dir;
  if (auto s = policy::check_working_dir(load.working_dir); !s) return s;
  if (auto s = take(load.env, parse_params(options.env)); !s)
    return Error{s.error().code, "--env: " + s.error().message, "K=V"};
  if (auto s = policy::check_environment(load.env); !s) return s;
  if (auto s = take(load.labels, parse_params(options.labels)); !s)
    return Error{s.error().code, "--label: " + s.error().message, "k=v"};
  for (const std::string& after : options.after) {
    if (after.rfind("afterok:", 0) != 0 || after.size() == 8)
      return invalid("--dependency: '" + after + "' is none", "afterok:TASK");
    load.after.push_back(after);
  }
  if (!options.time.empty()) {
    const auto span = parse_span_ms(options.time);
    if (!span) return Error{span.error().code, "--time: " + span.error().message, span.error().hint};
    if (*span < 1000) return invalid("--time: less than a second is no time for a task");
    load.time_limit_s = *span / 1000;
  }
  return parse_restart(options.restart, load);
}

Result<std::vector<std::map<std::string, std::string>>> combinations(const std::vector<std::string>& sweeps) {
  std::vector<std::map<std::string, std::string>> all{{}};
  for (const std::string& sweep : sweeps) {
    const size_t equals = sweep.find('=');
    if (equals == sweep.npos || equals == 0 || equals + 1 == sweep.size())
      return invalid("--sweep: '" + sweep + "' has no values", "--sweep rate=0.1,0.01");
    const std::string key = sweep.substr(0, equals);
    if (all.front().count(key) != 0) return invalid("--sweep: '" + key + "' is swept twice");
    std::vector<std::map<std::string, std::string>> more;
    for (const auto& one : all) {
      for (size_t at = equals + 1; at <= sweep.size();) {
        const size_t end = std::min(sweep.find(',', at), sweep.size());
        if (end == at) return invalid("--sweep: '" + sweep + "' has an empty value");
        more.push_back(one);
        more.back()[key] = sweep.substr(at, end - at);
        at = end + 1;
      }
      if (more.size() > kMostCombinations)
        return invalid("--sweep: more than 1000 combinations", "make several sweeps");
    }
    all = std::move(more);
  }
  return all;
}

Result<std::vector<LabelWanted>> parse_labels_wanted(const std::vector<std::string>& texts) {
  std::vector<LabelWanted> wanted;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (text.empty() || equals == 0) return invalid("-l: '" + text + "' is no label", "k=v, or k");
    wanted.push_back({text.substr(0, equals), equals == text.npos, equals == text.npos ? "" : text.substr(equals + 1)});
  }
  return wanted;
}

bool has_labels(const bus::Load& load, const std::vector<LabelWanted>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const LabelWanted& one) {
    const auto found = load.labels.find(one.key);
    return found != load.labels.end() && (one.any || found->second == one.value);
  });
}

}  // namespace freeride::ctl
