// PageRank by power iteration, in pieces, on some kind of device. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph.hpp"

namespace pagerank {

/// Where the ranks are computed. One is chosen at CreateSideTask; its device memory is taken by begin() and given back
/// by release().
///
/// r'(v) = (1 - d)/n + d * (sum over u -> v of r(u)/outdegree(u) + sum over dangling u of r(u)/n)   (Page, Brin,
/// Motwani, Winograd 1999)
class RankBackend {
 public:
  virtual ~RankBackend() = default;
  /// Starts from the uniform vector. `graph` must stay as it is until the next begin() or release(). Keeps the memory
  /// of the last graph where that is enough.
  virtual void begin(const Graph& graph, double damping) = 0;
  /// After begin(), before advance(): goes on from these ranks, one for each vertex. (From any vector it converges to
  /// the same.) Not in pieces.
  virtual void start_from(const std::vector<double>& ranks) = 0;
  /// One small piece of work (tens of microseconds on a CPU); true when it has completed an iteration.
  virtual bool advance() = 0;
  /// Sum of |r' - r| over the last complete iteration.
  virtual double residual() const = 0;
  /// Ranks after the last complete iteration, in host memory; valid until the next advance().
  virtual const std::vector<double>& ranks() = 0;
  virtual void release() = 0;
};

/// `kind`: "cpu", or "auto" for the best one that `device` ("cpu-N" or a GPU's UUID) can run. Throws
/// freeride::Unavailable for a device that no backend knows. A further backend joins here.
std::unique_ptr<RankBackend> make_backend(const std::string& kind, const std::string& device);

}  // namespace pagerank
