// Directed graphs for PageRank: where they come from (files, Graph500's generator) and the form they are computed in.
// Everything that can be long comes in pieces, so that a side task's step stays short. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pagerank {

struct Edge {
  uint32_t from;
  uint32_t to;
};

/// A graph as it is read: vertices 0..vertices-1, edges in any order, repeated ones counting as often as they occur.
struct EdgeList {
  uint32_t vertices = 0;
  std::vector<Edge> edges;
  std::vector<uint64_t> labels;  ///< the file's name of each vertex; empty: the vertex's own number
};

/// Reads a graph file whole. `format`: "snap" (SNAP edge list: `from to` a line, # comments, any numbering; further
/// columns are ignored), "mm" (Matrix Market coordinate, square; entry (i, j) is the edge i -> j; symmetric ones give
/// both directions; weights are ignored) or "auto" (by the first line). Throws freeride::Unavailable when the file
/// cannot be opened and freeride::TaskError, naming the line, when it is no such graph.
EdgeList read_graph(const std::string& path, const std::string& format);

/// Graph500's R-MAT generator (https://graph500.org, "Kronecker": A, B, C, D = 0.57, 0.19, 0.19, 0.05): 2^scale
/// vertices, edge_factor edges each, vertex numbers scrambled. Each edge depends on seed and its own number only. Edges
/// are kept directed as generated, with self-loops and repetitions.
class RmatGenerator {
 public:
  RmatGenerator(unsigned scale, unsigned edge_factor);
  /// Starts over with another seed; keeps the memory.
  void begin(uint64_t seed);
  /// Makes up to `count` more edges; true when the graph is complete.
  bool advance(size_t count);
  const EdgeList& graph() const { return graph_; }

 private:
  Edge edge(uint64_t number) const;
  uint32_t scramble(uint32_t vertex) const;

  unsigned scale_;
  uint64_t total_;
  uint64_t seed_ = 0;
  EdgeList graph_;
};

/// Compressed rows of incoming edges: source[begin[v] .. begin[v + 1]) are the vertices that link to v.
struct Graph {
  uint32_t vertices = 0;
  std::vector<uint64_t> begin;
  std::vector<uint32_t> source;
  std::vector<uint32_t> out_degree;
};

/// Makes a Graph from an EdgeList by counting sort, in pieces.
class GraphBuilder {
 public:
  /// Starts; `edges` must stay as it is until advance() has said true. Memory of an earlier graph is kept.
  void begin(const EdgeList& edges);
  /// Does up to `count` units of work; true when graph() is complete.
  bool advance(size_t count);
  const Graph& graph() const { return graph_; }

 private:
  enum class Phase { kClear, kCount, kSum, kScatter, kDone };

  const EdgeList* list_ = nullptr;
  Phase phase_ = Phase::kDone;
  size_t at_ = 0;
  Graph graph_;
  std::vector<uint64_t> next_;  // per vertex: where its next incoming edge goes
};

}  // namespace pagerank
