// PageRank by power iteration, in pieces, on some kind of device. One thread.
#pragma once

#include <memory>

#include "common/backend.hpp"
#include "graph/graph.hpp"

namespace pagerank {

/// Where the ranks are computed. One is chosen at CreateSideTask and touches its device from the first begin() on; its
/// device memory is given back by release().
///
/// r'(v) = (1 - d)/n + d * (sum over u -> v of r(u)/outdegree(u) + sum over dangling u of r(u)/n)   (Page, Brin,
/// Motwani, Winograd 1999)
class RankBackend {
 public:
  virtual ~RankBackend() = default;
  /// Starts from the uniform vector. `graph` must stay as it is until the next begin() or release(). Keeps the memory
  /// of the last graph where that is enough.
  virtual void begin(const graph::Graph& graph, double damping) = 0;
  /// The same for a generated graph that the backend makes itself, with advance(), on its device. False, and nothing
  /// done, if it cannot: then make the graph and give it to the other begin().
  virtual bool begin(const graph::Rmat& /*rmat*/, double /*damping*/) { return false; }
  /// Whether the graph is there, so that advance() is about ranks.
  virtual bool has_graph() const { return true; }
  /// After begin(), with the graph there, before advance(): goes on from these ranks, one for each vertex. (From any
  /// vector it converges to the same.) Not in pieces.
  virtual void start_from(const double* ranks) = 0;
  /// One piece of work: tens of microseconds on a CPU, at most about step_ms on a GPU, where it is done on return. True
  /// when it has completed an iteration.
  virtual bool advance() = 0;
  /// Sum of |r' - r| over the last complete iteration.
  virtual double residual() const = 0;
  /// Copies `count` ranks from vertex `begin` on, as after the last complete iteration.
  virtual void read_ranks(uint64_t begin, uint64_t count, double* ranks) = 0;
  virtual void release() = 0;
};

std::unique_ptr<RankBackend> make_backend(const common::Setup& setup);
std::unique_ptr<RankBackend> make_cuda_backend(double step_ms, bool spin);  ///< where there is CUDA

}  // namespace pagerank
