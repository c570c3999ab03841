// Directed graphs for side tasks: where they come from (files, Graph500's generator) and the form they are computed in.
// Everything that can be long comes in pieces, so that a side task's step stays short. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rmat.hpp"

namespace graph {

/// A graph as it is read: vertices 0..vertices-1, edges in any order, repeated ones counting as often as they occur.
struct EdgeList {
  uint32_t vertices = 0;
  std::vector<Edge> edges;
  std::vector<float> values;     ///< of each edge, where they were asked for and the file has them; else empty
  std::vector<uint64_t> labels;  ///< the file's name of each vertex; empty: the vertex's own number
};

/// kIgnore: edges alone, so a Matrix Market file must be square. kRead: their values too (weights, ratings): the third
/// column, if the first edge has one; a matrix may have more columns than rows or fewer.
enum class Values { kIgnore, kRead };

/// Reads a graph file whole. `format`: "snap" (SNAP edge list: `from to` a line, # comments, any numbering; further
/// columns are ignored), "mm" (Matrix Market coordinate; entry (i, j) is the edge i -> j; symmetric ones give both
/// directions) or "auto" (by the first line). Throws freeride::Unavailable when the file cannot be opened and
/// freeride::TaskError, naming the line, when it is no such graph.
EdgeList read_graph(const std::string& path, const std::string& format, Values values = Values::kIgnore);

/// Makes the edges of an Rmat in pieces, in host memory.
class RmatGenerator {
 public:
  RmatGenerator(uint64_t vertices, uint64_t edges);
  /// Starts over with another seed; keeps the memory.
  void begin(uint64_t seed);
  /// Makes up to `count` more edges; true when the graph is complete.
  bool advance(size_t count);
  const EdgeList& graph() const { return list_; }

 private:
  Rmat rmat_;
  EdgeList list_;
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

}  // namespace graph
