#include "sandbox/hidden_path.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace freeride::worker {
namespace {

constexpr std::array<const char*, 10> kNotThere{"o such file",   "annot open", "an't open", "nable to open",
                                                "ould not open", "annot read", "not found", "annot find",
                                                "ot exist",      "annot load"};
constexpr const char* kAround = " \t\n'\"`<>()[]{},;=";

bool holds(const std::string& folder, std::string_view path) {
  if (folder.empty() || path.substr(0, folder.size()) != folder) return false;
  return folder.back() == '/' || path.size() == folder.size() || path[folder.size()] == '/';
}

}  // namespace

std::string hidden_path(const std::string& message, const std::vector<std::string>& visible) {
  const bool not_there = std::any_of(kNotThere.begin(), kNotThere.end(),
                                     [&](const char* words) { return message.find(words) != std::string::npos; });
  if (!not_there) return {};
  for (size_t at = message.find('/'); at != std::string::npos; at = message.find('/', at + 1)) {
    if (at > 0 && std::string_view(kAround).find(message[at - 1]) == std::string_view::npos) continue;
    std::string_view path = std::string_view(message).substr(at);
    path = path.substr(0, path.find_first_of(kAround));
    while (path.size() > 1 && (path.back() == ':' || path.back() == '.' || path.back() == '/')) path.remove_suffix(1);
    const bool shown = std::any_of(visible.begin(), visible.end(), [&](const auto& one) { return holds(one, path); });
    if (path.size() > 1 && !shown) return std::string(path);
    at += path.size();
  }
  return {};
}

}  // namespace freeride::worker
