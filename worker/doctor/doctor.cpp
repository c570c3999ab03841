#include "doctor/doctor.hpp"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>

namespace freeride::worker {
namespace {

const char* text_of(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarn:
      return "warn";
    case Health::kMissing:
      return "missing";
  }
  return "";
}

// What comes from files and programs of the host may hold anything.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return text;
}

int count(const Findings& findings, Health health) {
  return static_cast<int>(
      std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.health == health; }));
}

}  // namespace

Findings diagnose(const Options& options) {
  Findings findings;
  look_at_kernel(findings);
  look_at_scheduling(options, findings);
  look_at_sandbox(options, findings);
  look_at_folders(options, findings);
  look_at_gpus(options, findings);
  return findings;
}

int report(const Findings& findings, bool json, std::ostream& out) {
  const int missing = count(findings, Health::kMissing), warnings = count(findings, Health::kWarn);
  if (json) {
    nlohmann::json list = nlohmann::json::array();
    for (const Finding& f : findings) {
      list.push_back({{"area", f.area},
                      {"name", f.name},
                      {"health", text_of(f.health)},
                      {"found", f.found},
                      {"advice", f.advice}});
    }
    const nlohmann::json all{{"ok", missing == 0}, {"missing", missing}, {"warnings", warnings}, {"findings", list}};
    out << all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return missing == 0 ? 0 : 1;
  }
  size_t width = 0;
  for (const Finding& f : findings) width = std::max(width, f.name.size());
  std::string area;
  for (const Finding& f : findings) {
    if (f.area != area) out << (area.empty() ? "" : "\n") << (area = f.area) << "\n";
    const char* mark = f.health == Health::kOk ? "OK" : f.health == Health::kWarn ? "WARN" : "MISSING";
    out << "  " << std::left << std::setw(9) << mark << std::setw(static_cast<int>(width) + 2) << f.name
        << printable(f.found) << "\n";
    if (!f.advice.empty()) out << std::string(11 + width + 2, ' ') << "-> " << printable(f.advice) << "\n";
  }
  out << "\n";
  if (missing == 0 && warnings == 0) {
    out << "all is there\n";
  } else {
    out << missing << " missing, " << warnings << (warnings == 1 ? " warning" : " warnings")
        << (missing == 0 ? ": side tasks can run here\n" : ": side tasks cannot run here\n");
  }
  return missing == 0 ? 0 : 1;
}

}  // namespace freeride::worker
