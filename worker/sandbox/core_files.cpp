#include "sandbox/core_files.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace freeride::worker {
namespace {

namespace fs = std::filesystem;

/// "cpu0", "cpu1", … of a folder, by number.
std::map<int, fs::path> numbered(const fs::path& folder, const std::string& word) {
  std::map<int, fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(word, 0) != 0) continue;
    int number = 0;
    const char* const end = name.data() + name.size();
    if (std::from_chars(name.data() + word.size(), end, number).ptr == end) found.emplace(number, entry.path());
  }
  return found;
}

/// As the kernel writes them: "0-3,8\n".
std::string list(const std::vector<int>& numbers) {
  std::string text;
  for (size_t first = 0, last = 0; first < numbers.size(); first = ++last) {
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[first]);
    if (last > first) text += "-" + std::to_string(numbers[last]);
  }
  return text + "\n";
}

}  // namespace

CoreFiles core_files(const std::vector<int>& cores, const fs::path& system) {
  const auto cpus = numbered(system / "cpu", "cpu"), nodes = numbered(system / "node", "node");
  std::vector<int> its_cores, its_nodes;
  std::copy_if(cores.begin(), cores.end(), std::back_inserter(its_cores),
               [&](int core) { return cpus.count(core) != 0; });
  CoreFiles files;
  if (its_cores.empty()) return files;
  if (its_cores.size() == cpus.size()) {
    files.shown = {system / "cpu"};
    if (!nodes.empty()) files.shown.push_back(system / "node");
    return files;
  }
  for (const int core : its_cores) files.shown.push_back(cpus.at(core));
  for (const char* name : {"online", "possible", "present"}) files.made[system / "cpu" / name] = list(its_cores);
  for (const auto& [number, folder] : nodes) {
    if (std::none_of(its_cores.begin(), its_cores.end(),
                     [&folder = folder](int core) { return fs::exists(folder / ("cpu" + std::to_string(core))); }))
      continue;
    its_nodes.push_back(number);
    files.shown.push_back(folder);
  }
  if (its_nodes.empty()) return files;
  for (const char* name : {"online", "possible", "has_cpu", "has_memory", "has_normal_memory"})
    files.made[system / "node" / name] = list(its_nodes);
  return files;
}

}  // namespace freeride::worker
