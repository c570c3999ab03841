// Sorting and saying: what the benchmark programs share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace freeride::bench {

/// The `share` (0..1) quantile by nearest rank; 0 of nothing.
template <class T>
double quantile(std::vector<T> samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto at = static_cast<size_t>(share * static_cast<double>(samples.size() - 1) + 0.5);
  return static_cast<double>(samples[std::min(at, samples.size() - 1)]);
}

/// Figures by name, printed as one JSON object for run.py.
class Figures {
 public:
  void set(const std::string& name, double value) { values_[name] = value; }
  /// p50 and p99 of nanoseconds, as "<name>_p50_us" and "<name>_p99_us".
  void set_us(const std::string& name, const std::vector<int64_t>& samples_ns) {
    set(name + "_p50_us", quantile(samples_ns, 0.50) / 1e3);
    set(name + "_p99_us", quantile(samples_ns, 0.99) / 1e3);
  }
  void print() const {
    std::printf("{");
    const char* separator = "";
    for (const auto& [name, value] : values_) {
      std::printf("%s\"%s\": %.3f", separator, name.c_str(), value);
      separator = ", ";
    }
    std::printf("}\n");
  }

 private:
  std::map<std::string, double> values_;
};

}  // namespace freeride::bench
