// SpeedHistory: whether a piece of work takes longer now than it used to on the same device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace canary {

/// Knows no device and has no limit of its own: what is slow is told from the history alone. A window of 64 pieces is
/// slow when half of them took longer than 99 of 100 pieces before them. Were nothing changed, 32 of 64 pieces above
/// that length would come by chance once in 10^46 windows; pieces are not independent, so four slow windows in a row
/// are wanted. A device that is noisy by nature has a long tail in its history, and needs a larger change to be told.
///
/// The history is a sample of all pieces so far, each as likely to be in it (Vitter's algorithm R), and slow windows do
/// not come into it: so it is neither forgotten in an hour nor does it learn that slow is normal. One thread.
class SpeedHistory {
 public:
  enum class News { kNone, kSlow, kNormal };
  static constexpr size_t kWindow = 64, kKept = 1024, kWindowsInARow = 4;
  static constexpr uint64_t kLeast = 4096;  ///< pieces, before anything is judged

  News note(double ns);
  bool slow() const { return slow_; }
  uint64_t pieces() const { return seen_; }          ///< in the history
  double recent_ns() const { return recent_ns_; }    ///< the last window's middle; 0: there was none
  double typical_ns() const { return typical_ns_; }  ///< the history's middle
  double limit_ns() const { return limit_ns_; }      ///< that 99 of 100 did not exceed; 0: not known yet

  std::string save() const;
  /// False, and nothing changed: it is none of save()'s.
  bool restore(const std::string& state);

 private:
  void learn();
  void measure();

  std::vector<double> window_, history_;
  uint64_t seen_ = 0, random_ = 1;
  size_t in_a_row_ = 0;  // windows that are not as slow_ says
  bool slow_ = false;
  double recent_ns_ = 0, typical_ns_ = 0, limit_ns_ = 0;
};

}  // namespace canary
