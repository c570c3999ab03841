// The parameters of side tasks that compute on a graph: a file, or a generated one.
#pragma once

#include <string>

#include "freeride/plugin.hpp"
#include "rmat.hpp"

namespace graph {

/// A member of the task.
class GraphParams {
 public:
  explicit GraphParams(freeride::SideTask* task)
      : input_(task, "input", "", "graph file; empty: generate an R-MAT graph"),
        format_(task, "format", "auto", "of the graph file", {"auto", "snap", "mm"}),
        scale_(task, "scale", 16, "log2 of the vertices of a generated graph", {1, 28}),
        edge_factor_(task, "edge_factor", 16, "edges per vertex of a generated graph", {1, 256}),
        vertices_(task, "vertices", 0, "of a generated graph; 0: 2^scale", {0, 4000000000}),
        edges_(task, "edges", 0, "of a generated graph; 0: edge_factor a vertex", {0, 100000000000}),
        seed_(task, "seed", 1, "of what is generated") {}

  const std::string& input() const { return input_; }
  const std::string& format() const { return format_; }
  uint64_t seed() const { return seed_; }
  bool generates() const { return input_.get().empty(); }
  /// The graph to be generated. Throws BadParameter.
  Rmat rmat() const {
    const uint64_t vertices = vertices_ > 0 ? vertices_.get() : uint64_t{1} << scale_;
    if (vertices < 2) throw freeride::BadParameter("parameter vertices=1: a graph has at least two");
    return {vertices, edges_ > 0 ? edges_.get() : vertices * edge_factor_, seed_};
  }

 private:
  freeride::Param<std::string> input_;
  freeride::Param<std::string> format_;
  freeride::Param<unsigned> scale_;
  freeride::Param<unsigned> edge_factor_;
  freeride::Param<uint64_t> vertices_;
  freeride::Param<uint64_t> edges_;
  freeride::Param<uint64_t> seed_;
};

}  // namespace graph
