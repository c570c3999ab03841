#include "up_plan.hpp"

#include <algorithm>
#include <set>

namespace freeride::ctl {
namespace {

constexpr std::string_view kCpu = "cpu-";

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// "2026-11-30T06:36:19.209 error [freeride-manager] what": level and what. Other lines as they are.
std::string without_time(std::string_view line) {
  const size_t level = line.find(' ');
  const size_t program = line.find(" [", level == line.npos ? level : level + 1);
  const size_t text = line.find("] ", program);
  if (text == line.npos || line.find('T') > level) return std::string(line);
  return std::string(line.substr(level + 1, program - level - 1)) + ": " + std::string(line.substr(text + 2));
}

bool is_error(const std::string& line) {
  return line.rfind("error: ", 0) == 0 || line.rfind("critical: ", 0) == 0;
}

}  // namespace

Result<std::vector<PlannedWorker>> plan_workers(const WantedDevices& wanted, const std::vector<std::string>& gpus,
                                                const std::vector<int>& usable) {
  std::vector<std::string> devices = wanted.devices;
  if (devices.empty() && wanted.cpus == 0) devices = gpus;
  if (devices.empty()) {
    for (int cpu = 0; cpu < (wanted.cpus != 0 ? wanted.cpus : kUsualCpus); ++cpu)
      devices.push_back(std::string(kCpu) + std::to_string(cpu));
  }
  std::vector<PlannedWorker> planned;
  std::set<std::string> seen;
  size_t cpus = 0;
  for (const std::string& device : devices) {
    if (!seen.insert(device).second)
      return Error{Code::kInvalidArgument, "the device " + device + " is named twice", "correct --device"};
    std::string cores;
    if (device.rfind(kCpu, 0) == 0) {
      if (cpus < wanted.cores.size()) {
        cores = wanted.cores[cpus];
      } else if (!usable.empty()) {
        cores = std::to_string(usable[cpus % usable.size()]);
      }
      ++cpus;
    }
    planned.push_back({device, cores});
  }
  if (wanted.cores.size() > cpus)
    return Error{Code::kInvalidArgument, "--cores is given more often than there are CPU devices", "correct --cores"};
  return planned;
}

std::vector<std::string> listed_gpus(std::string_view printed) {
  std::vector<std::string> gpus;
  for (const std::string_view line : lines_of(printed)) {
    if (line.find(' ') == line.npos) gpus.emplace_back(line);
  }
  return gpus;
}

std::vector<std::string> last_words(std::string_view log, size_t most) {
  std::vector<std::string> words;
  for (const std::string_view line : lines_of(log)) words.push_back(without_time(line));
  if (std::any_of(words.begin(), words.end(), is_error))
    words.erase(std::remove_if(words.begin(), words.end(), [](const auto& line) { return !is_error(line); }),
                words.end());
  if (words.size() > most) words.erase(words.begin(), words.end() - static_cast<std::ptrdiff_t>(most));
  return words;
}

std::string address_in(std::string_view log) {
  constexpr std::string_view kReady = "] ready: ";
  const size_t at = log.find(kReady);
  if (at == log.npos) return {};
  log.remove_prefix(at + kReady.size());
  const size_t line = log.find('\n');  // of a line that is being written, the end may be missing
  if (line == log.npos) return {};
  return std::string(log.substr(0, std::min(line, log.find(','))));
}

}  // namespace freeride::ctl
