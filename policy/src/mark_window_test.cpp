#include "freeride/policy/mark_window.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <vector>

using namespace freeride;
using policy::mark_window;
using policy::MarkWindow;
using policy::usual_span;

namespace {

// Recorded on four H200s, a 1F1B with iterations of 306 ms and ResNet18 in its bubbles, in us: from the end of a wait
// to the mark of the next long one. The last stage has one an iteration, a third stage five.
constexpr std::array kLastStage = {189107, 190195, 189350, 191158, 191961, 187859, 188933, 189969, 193601, 191009,
                                   190207, 189347, 187136, 190326, 188754, 188104, 190214, 188017, 187078, 189362,
                                   187686, 190897, 189836, 188221, 187110, 191858, 190497, 189361, 189113, 191217,
                                   190057, 192776, 189391, 188517, 190993, 190515, 191357, 187289, 187450, 187810,
                                   186496, 189571, 187711, 189178, 187116, 189343, 189016, 192640, 189805, 191636,
                                   193378, 187273, 191490, 186517, 190995, 190345, 188290, 186629, 187019};
constexpr std::array kThirdStage = {37847, 37951, 38125, 37589, 37724, 37621, 37312, 37889, 37774, 38102, 37613, 37557,
                                    37739, 37432, 37687, 37929, 37536, 37968, 37979, 37218, 37809, 37940, 37591, 37582,
                                    37414, 37332, 37984, 38276, 38138, 37597, 38248, 37476, 37431, 37462, 37360, 37827,
                                    37816, 37533, 37824, 37698, 37817, 37565, 37748, 38148, 37883, 37797, 38289, 37342,
                                    37532, 38671, 37797, 37310, 37320, 37847, 37706, 37770, 37922, 37446, 37353, 37894};
constexpr int64_t kIterationNs = 306 * kNsPerMs;
constexpr size_t kKnown = 16;  // times that the hook keeps

struct Looked {
  int marks = 0, found = 0;
  int64_t awake_ns = 0;
  double core_pct() const { return 100.0 * static_cast<double>(awake_ns) / marks / kIterationNs; }
};

template <size_t N>
Looked look_for(const std::array<int, N>& times_us) {
  Looked looked;
  for (size_t i = kKnown; i < N; ++i) {
    std::vector<int64_t> known;
    for (size_t j = i - kKnown; j < i; ++j) known.push_back(times_us[j] * kNsPerUs);
    const MarkWindow window = mark_window(usual_span(known));
    const int64_t mark_ns = times_us[i] * kNsPerUs;
    ++looked.marks;
    looked.found += window.from_ns <= mark_ns && mark_ns <= window.to_ns;
    looked.awake_ns += std::max<int64_t>(0, std::min(mark_ns, window.to_ns) - window.from_ns);
  }
  return looked;
}

}  // namespace

TEST_CASE("recorded marks are found, and looking for them takes little of a core") {
  const Looked last = look_for(kLastStage), third = look_for(kThirdStage);
  CHECK(last.marks == 43);
  CHECK(last.found >= 42);  // with 4 ms at most: 30
  CHECK(last.core_pct() < 1.1);
  CHECK(third.marks == 44);
  CHECK(third.found == 44);
  CHECK(third.core_pct() < 0.3);
}

TEST_CASE("a pause of training's does not widen what is usual") {
  std::vector<int64_t> times{20 * kNsPerMs, 20 * kNsPerSec, 21 * kNsPerMs, 22 * kNsPerMs, kNsPerMs};
  const auto usual = usual_span(times);
  CHECK(usual.least_ns == 20 * kNsPerMs);
  CHECK(usual.most_ns == 22 * kNsPerMs);
  CHECK(usual_span({}).most_ns == 0);
  CHECK(mark_window({}).to_ns == 0);
}

TEST_CASE("many short waits whose times vary may not take a core") {
  const MarkWindow window = mark_window({5 * kNsPerMs, 30 * kNsPerMs});
  CHECK(window.to_ns - window.from_ns == 4 * kNsPerMs);
  const MarkWindow seldom = mark_window({500 * kNsPerMs, 600 * kNsPerMs});
  CHECK(seldom.to_ns - seldom.from_ns == 20 * kNsPerMs);
}
