#include "graph.hpp"

#include <algorithm>

namespace graph {

RmatGenerator::RmatGenerator(uint64_t vertices, uint64_t edges) : rmat_(vertices, edges, 0) {
  list_.vertices = rmat_.vertices();
  list_.edges.reserve(edges);
}

void RmatGenerator::begin(uint64_t seed) {
  rmat_ = Rmat(rmat_.vertices(), rmat_.edges(), seed);
  list_.edges.clear();
}

bool RmatGenerator::advance(size_t count) {
  const uint64_t until = std::min<uint64_t>(rmat_.edges(), list_.edges.size() + count);
  while (list_.edges.size() < until) list_.edges.push_back(rmat_.edge(list_.edges.size()));
  return list_.edges.size() == rmat_.edges();
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

}  // namespace graph
