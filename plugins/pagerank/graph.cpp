#include "graph.hpp"

#include <algorithm>

namespace pagerank {
namespace {

// SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014): one well-mixed word per input word.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// Graph500's quadrant probabilities, summed up, in 1/2^16.
constexpr uint32_t kA = 37356;    // 0.57
constexpr uint32_t kAB = 49807;   // 0.76
constexpr uint32_t kABC = 62259;  // 0.95

}  // namespace

RmatGenerator::RmatGenerator(unsigned scale, unsigned edge_factor)
    : scale_(scale), total_(uint64_t{edge_factor} << scale) {
  graph_.vertices = uint32_t{1} << scale;
  graph_.edges.reserve(total_);
}

void RmatGenerator::begin(uint64_t seed) {
  seed_ = mix(seed + kGolden);
  graph_.edges.clear();
}

bool RmatGenerator::advance(size_t count) {
  const uint64_t until = std::min<uint64_t>(total_, graph_.edges.size() + count);
  while (graph_.edges.size() < until) graph_.edges.push_back(edge(graph_.edges.size()));
  return graph_.edges.size() == total_;
}

Edge RmatGenerator::edge(uint64_t number) const {
  uint32_t from = 0;
  uint32_t to = 0;
  uint64_t bits = 0;
  for (unsigned level = 0; level < scale_; ++level) {
    // 16 random bits pick the quadrant at each level; a word lasts for four.
    if (level % 4 == 0) bits = mix(seed_ + (number * 8 + level / 4) * kGolden);
    const uint32_t draw = bits & 0xffffu;
    bits >>= 16;
    from = from << 1 | static_cast<uint32_t>(draw >= kAB);
    to = to << 1 | static_cast<uint32_t>((draw >= kA && draw < kAB) || draw >= kABC);
  }
  return {scramble(from), scramble(to)};
}

// A bijection on scale_ bits: without it the vertices of high degree would be the low numbers.
uint32_t RmatGenerator::scramble(uint32_t vertex) const {
  const uint32_t mask = (uint32_t{1} << scale_) - 1;
  const unsigned half = (scale_ + 1) / 2;
  for (int round = 0; round < 3; ++round) {
    const auto odd = static_cast<uint32_t>(mix(seed_ + static_cast<uint64_t>(round))) | 1u;
    vertex = (vertex * odd) & mask;
    vertex ^= vertex >> half;
  }
  return vertex;
}

void GraphBuilder::begin(const EdgeList& edges) {
  list_ = &edges;
  graph_.vertices = edges.vertices;
  graph_.begin.resize(size_t{edges.vertices} + 1);
  graph_.out_degree.resize(edges.vertices);
  graph_.source.resize(edges.edges.size());
  next_.resize(edges.vertices);
  phase_ = Phase::kClear;
  at_ = 0;
}

bool GraphBuilder::advance(size_t count) {
  if (phase_ == Phase::kDone) return true;
  const auto& edges = list_->edges;
  const bool over_edges = phase_ == Phase::kCount || phase_ == Phase::kScatter;
  const size_t total = over_edges ? edges.size() : graph_.vertices;
  const size_t until = std::min(total, at_ + count);
  switch (phase_) {
    case Phase::kClear:
      std::fill(next_.begin() + at_, next_.begin() + until, 0);
      std::fill(graph_.out_degree.begin() + at_, graph_.out_degree.begin() + until, 0);
      break;
    case Phase::kCount:
      for (size_t i = at_; i < until; ++i) {
        ++next_[edges[i].to];
        ++graph_.out_degree[edges[i].from];
      }
      break;
    case Phase::kSum:
      if (at_ == 0) graph_.begin[0] = 0;
      for (size_t v = at_; v < until; ++v) {
        graph_.begin[v + 1] = graph_.begin[v] + next_[v];
        next_[v] = graph_.begin[v];
      }
      break;
    case Phase::kScatter:
      for (size_t i = at_; i < until; ++i) graph_.source[next_[edges[i].to]++] = edges[i].from;
      break;
    case Phase::kDone:
      break;
  }
  at_ = until;
  if (at_ == total) {
    at_ = 0;
    phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
  }
  return phase_ == Phase::kDone;
}

}  // namespace pagerank
