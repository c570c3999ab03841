// One number made of another, all bits of it. Inline, so that every process computes the same.
#pragma once

#include <cstdint>

namespace freeride::policy {

/// SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of x.
constexpr uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace freeride::policy
