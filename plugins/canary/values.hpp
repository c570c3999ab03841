// The values that are multiplied and stored: functions of a seed and a place, the same on a CPU and on a GPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define CANARY_BOTH __host__ __device__
#else
#define CANARY_BOTH
#endif

namespace canary {

constexpr unsigned kEdge = 64;  ///< rows and columns of the matrices

/// splitmix64's finaliser (Steele, Lea, Flood 2014).
CANARY_BOTH inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// An element of factor 0 or 1: a whole number from ±1 to ±8. So each product and each sum of 64 of them is exact in
/// 32-bit integers, in float and double in whatever order, and in a tensor core with factors of 16 bits.
CANARY_BOTH inline int element_of(uint64_t sixteen, unsigned place) {
  const auto bits = static_cast<int>(sixteen >> (4 * place) & 15);
  return (bits & 8) != 0 ? -(bits & 7) - 1 : (bits & 7) + 1;
}
/// Sixteen elements of a row.
CANARY_BOTH inline uint64_t sixteen_of(uint64_t seed, unsigned factor, unsigned row, unsigned sixteenth) {
  return mixed(seed ^ (uint64_t{factor} << 40 | uint64_t{row} << 20 | sixteenth));
}
CANARY_BOTH inline int element_of(uint64_t seed, unsigned factor, unsigned row, unsigned column) {
  return element_of(sixteen_of(seed, factor, row, column / 16), column % 16);
}

/// What memory is filled with. Walking bits find shorted and stuck lines, addresses find words that answer for another,
/// stripes and random words couple neighbours.
enum class Pattern : uint32_t { kWalkingOne, kWalkingZero, kAddress, kInvertedAddress, kStripes, kRandom };
constexpr uint32_t kPatterns = 6;

/// The word at `index`; another seed shifts the pattern.
CANARY_BOTH inline uint64_t word_of(Pattern pattern, uint64_t seed, uint64_t index) {
  switch (pattern) {
    case Pattern::kWalkingOne:
      return uint64_t{1} << ((index + seed) % 64);
    case Pattern::kWalkingZero:
      return ~(uint64_t{1} << ((index + seed) % 64));
    case Pattern::kAddress:
      return index << 32 | (index & 0xffffffffu);
    case Pattern::kInvertedAddress:
      return ~(index << 32 | (index & 0xffffffffu));
    case Pattern::kStripes:
      return (index + seed) % 2 == 0 ? 0xaaaaaaaaaaaaaaaau : 0x5555555555555555u;
    case Pattern::kRandom:
      return mixed(seed ^ index * 0x9e3779b97f4a7c15u);
  }
  return 0;
}

}  // namespace canary
