#include "suggest.hpp"

#include <algorithm>

#include "format.hpp"

namespace freeride::ctl {
namespace {

constexpr size_t kLongest = 64;  // names; what is longer is no slip of the finger

// Damerau and Levenshtein's distance in its restricted form: no part is changed twice.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t other = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + other});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = above;
    above = row;
  }
  return above[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kLongest) return {};
  std::string best, begun;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1, begins = 0;
  for (const std::string& candidate : candidates) {
    if (candidate == word) return {};
    if (candidate.size() > kLongest) continue;
    if (candidate.compare(0, word.size(), word) == 0) {
      ++begins;
      begun = candidate;
    }
    if (const size_t away = distance(word, candidate); away < least) {
      least = away;
      best = candidate;
    }
  }
  return best.empty() && begins == 1 ? begun : best;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string found = nearest(word, candidates);
  return found.empty() ? "" : "did you mean '" + printable(found) + "'? ";
}

}  // namespace freeride::ctl
