// Matrix factorisation by stochastic gradient descent over a graph's edges, in pieces, on some kind of device. One
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/backend.hpp"
#include "graph/graph.hpp"

namespace sgd {

/// Edges with a rating each, in the order in which a sweep visits them.
struct Ratings {
  uint32_t vertices = 0;
  std::vector<graph::Edge> edges;
  std::vector<float> ratings;
};

struct Settings {
  unsigned factors = 16;  ///< one of kFactors
  uint64_t seed = 1;      ///< of the first factors
  float mean = 3;         ///< of the ratings; the factors model what differs from it
  float regularisation = 0;
};

constexpr unsigned kFactors[] = {8, 16, 32, 64, 128};

enum class Side { kFrom, kTo };

/// The factor that a sweep starts from: uniform, small enough that a first product is well below 1.
GRAPH_ANYWHERE inline float first_factor(uint64_t seed, Side side, uint64_t vertex, unsigned factor, unsigned factors) {
  const uint64_t word =
      graph::mix(seed + (vertex * 256 + factor * 2 + (side == Side::kTo ? 1 : 0) + 1) * graph::kGolden);
  const float uniform = static_cast<float>(word >> 40) * (1.0F / 16777216.0F) - 0.5F;
  return uniform * (factors >= 64 ? 0.25F : 0.5F);
}

/// Where the factors are computed. Minimises the sum over edges (u, v) with rating r of
/// (r - mean - p(u)·q(v))² + regularisation (|p(u)|² + |q(v)|²), an edge at a time (Koren, Bell, Volinsky, IEEE
/// Computer 2009). Touches its device from the first begin() on.
class FactorBackend {
 public:
  virtual ~FactorBackend() = default;
  /// Starts with first factors. `ratings` must stay as they are until release().
  virtual void begin(const Ratings& ratings, const Settings& settings) = 0;
  /// The same for a generated graph with planted ratings, which the backend makes on its device. False, and nothing
  /// done, if it cannot.
  virtual bool begin(const graph::Rmat& /*rmat*/, uint64_t /*rating_seed*/, const Settings& /*settings*/) {
    return false;
  }
  /// One piece of a sweep: tens of microseconds on a CPU, at most about step_ms on a GPU, where it is done on return.
  /// True when it has completed the sweep.
  virtual bool advance(float learning_rate) = 0;
  /// Sum of squared differences over the last complete sweep, each as its edge was visited.
  virtual double squared_error() const = 0;
  /// Edges visited, all sweeps.
  virtual uint64_t visited() const = 0;
  /// Copies the factors of `count` vertices from `first` on, a vertex's side by side.
  virtual void read(Side side, uint64_t first, uint64_t count, float* factors) = 0;
  /// Puts all vertices' factors in place; the sweep begins anew.
  virtual void write(Side side, const float* factors) = 0;
  virtual void release() = 0;
};

std::unique_ptr<FactorBackend> make_backend(const common::Setup& setup);
std::unique_ptr<FactorBackend> make_cuda_backend(double step_ms, bool spin);  ///< where there is CUDA

}  // namespace sgd
