// Graph500's R-MAT edges, for hosts and GPUs: an edge depends on seed and its own number only, so anybody can make any
// part of a graph, and make it again instead of keeping it.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GRAPH_ANYWHERE __host__ __device__
#else
#define GRAPH_ANYWHERE
#endif

namespace graph {

struct Edge {
  uint32_t from;
  uint32_t to;
};

/// SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014): one well-mixed word per input word.
GRAPH_ANYWHERE inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

/// A graph of Graph500's generator (https://graph500.org, "Kronecker": A, B, C, D = 0.57, 0.19, 0.19, 0.05): directed
/// as generated, with self-loops and repetitions, vertex numbers scrambled. `vertices` need not be a power of two:
/// the next one's are spread over them evenly.
class Rmat {
 public:
  /// `vertices` 2 or more, below 2^32 - 1.
  Rmat(uint64_t vertices, uint64_t edges, uint64_t seed) : vertices_(vertices), edges_(edges) {
    while (uint64_t{1} << scale_ < vertices) ++scale_;
    seed_ = mix(seed + kGolden);
    for (unsigned round = 0; round < 3; ++round) odd_[round] = static_cast<uint32_t>(mix(seed_ + round)) | 1u;
  }

  GRAPH_ANYWHERE uint32_t vertices() const { return static_cast<uint32_t>(vertices_); }
  GRAPH_ANYWHERE uint64_t edges() const { return edges_; }

  GRAPH_ANYWHERE Edge edge(uint64_t number) const {
    // The quadrants' probabilities, summed up, in 1/2^16.
    constexpr uint32_t kA = 37356;    // 0.57
    constexpr uint32_t kAB = 49807;   // 0.76
    constexpr uint32_t kABC = 62259;  // 0.95
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
    return {vertex(from), vertex(to)};
  }

 private:
  // A bijection on scale_ bits: without it the vertices of high degree would be the low numbers.
  GRAPH_ANYWHERE uint32_t vertex(uint32_t number) const {
    const auto mask = static_cast<uint32_t>((uint64_t{1} << scale_) - 1);
    const unsigned half = (scale_ + 1) / 2;
    for (const uint32_t odd : odd_) {
      number = (number * odd) & mask;
      number ^= number >> half;
    }
    return static_cast<uint32_t>(number * vertices_ >> scale_);
  }

  uint64_t vertices_;
  uint64_t edges_;
  uint64_t seed_ = 0;
  uint32_t odd_[3] = {};
  unsigned scale_ = 1;
};

/// A rating of an edge that has none of its own: a planted model of four hidden traits on each side around 3, and some
/// noise, so that there is something to be found.
GRAPH_ANYWHERE inline float planted_rating(uint64_t seed, Edge edge) {
  const auto trait = [](uint64_t word, unsigned i) {
    return static_cast<float>(word >> (16 * i) & 0xffffu) * (2.0F / 65535.0F) - 1.0F;
  };
  const uint64_t from = mix(seed + (uint64_t{edge.from} * 2 + 1) * kGolden);
  const uint64_t to = mix(seed + (uint64_t{edge.to} * 2 + 2) * kGolden);
  float rating = 3.0F + 0.1F * trait(mix(from ^ (to << 1)), 0);
  for (unsigned i = 0; i < 4; ++i) rating += trait(from, i) * trait(to, i);
  return rating;
}

}  // namespace graph
