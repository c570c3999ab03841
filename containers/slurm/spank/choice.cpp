#include "choice.hpp"

#include <charconv>

namespace freeride::slurm {
namespace {
constexpr uint32_t kNoValue = 0xfffffffe;  // Slurm's NO_VAL: some of its programs say so of what is no task of an array
}  // namespace

std::optional<bool> parse_choice(std::string_view text) {
  if (text.empty() || text == "on" || text == "(null)") return true;
  if (text == "off") return false;
  return std::nullopt;
}

std::optional<std::string> parse_budget(std::string_view text) {
  double pct = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, pct, std::chars_format::fixed);
  if (failed != std::errc() || stop != end || !(pct >= 0 && pct <= 100)) return std::nullopt;
  return std::string(text);
}

std::string job_name(uint32_t job, uint32_t array, uint32_t array_task) {
  if (array == 0 || array_task == kNoValue) return "slurm-" + std::to_string(job);
  return "slurm-" + std::to_string(array) + "_" + std::to_string(array_task);
}

std::string in_front(const std::string& folder, const std::string& path) {
  if (path.empty()) return folder;
  if ((":" + path + ":").find(":" + folder + ":") != std::string::npos) return path;
  return folder + ":" + path;
}

bool take(Settings& settings, std::string_view word) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = word.substr(0, equals);
  const std::string value(word.substr(equals + 1));
  if (name == "python") return settings.python = value, true;
  if (name == "start") return settings.start = value, true;
  if (name == "library") return settings.library = value, true;
  if (name == "run_dir") return settings.run_dir = value, true;
  return false;
}

}  // namespace freeride::slurm
