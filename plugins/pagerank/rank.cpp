#include "rank.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pagerank {
namespace {

// Edges and vertices in one piece: some 10 µs of work, so that a look at the clock after each is nothing.
constexpr uint64_t kPiece = 4096;

/// Pulls: every vertex sums over its incoming edges, so nothing is written twice and a piece may end anywhere, also
/// inside a vertex of high degree.
class CpuBackend final : public RankBackend {
 public:
  void begin(const graph::Graph& graph, double damping) override {
    graph_ = &graph;
    damping_ = damping;
    const size_t n = graph.vertices;
    for (auto* vector : {&rank_, &next_rank_, &share_, &next_share_}) vector->resize(n);
    filled_ = 0;
    residual_ = 0;
    dangling_ = 0;
    restart_iteration();
  }

  void start_from(const double* ranks) override {
    rank_.assign(ranks, ranks + graph_->vertices);
    dangling_ = 0;
    for (filled_ = 0; filled_ < rank_.size(); ++filled_) share_[filled_] = share_of(filled_, rank_[filled_], dangling_);
  }

  bool advance() override { return filled_ < graph_->vertices ? fill() : iterate(); }

  double residual() const override { return residual_; }
  void read_ranks(uint64_t begin, uint64_t count, double* ranks) override {
    std::copy_n(rank_.data() + begin, count, ranks);
  }

  void release() override {
    graph_ = nullptr;
    for (auto* vector : {&rank_, &next_rank_, &share_, &next_share_}) std::vector<double>().swap(*vector);
  }

 private:
  // What v gives to each vertex that it links to; all of it, kept apart, when it links to none.
  double share_of(size_t v, double rank, double& dangling) const {
    const auto degree = graph_->out_degree[v];
    if (degree != 0) return rank / degree;
    dangling += rank;
    return 0;
  }

  bool fill() {
    const double uniform = 1.0 / graph_->vertices;
    const size_t until = std::min<size_t>(graph_->vertices, filled_ + kPiece);
    for (; filled_ < until; ++filled_) {
      rank_[filled_] = uniform;
      share_[filled_] = share_of(filled_, uniform, dangling_);
    }
    return false;
  }

  bool iterate() {
    const auto& graph = *graph_;
    const double base = (1 - damping_ + damping_ * dangling_) / graph.vertices;
    uint64_t budget = kPiece;
    while (vertex_ < graph.vertices) {
      const uint64_t end = graph.begin[vertex_ + 1];
      const uint64_t stop = std::min(end, edge_ + budget);
      budget -= stop - edge_;
      for (; edge_ < stop; ++edge_) sum_ += share_[graph.source[edge_]];
      if (edge_ < end || budget == 0) return false;
      --budget;
      const double rank = base + damping_ * sum_;
      next_residual_ += std::abs(rank - rank_[vertex_]);
      next_rank_[vertex_] = rank;
      next_share_[vertex_] = share_of(vertex_, rank, next_dangling_);
      sum_ = 0;
      ++vertex_;
    }
    rank_.swap(next_rank_);
    share_.swap(next_share_);
    dangling_ = next_dangling_;
    residual_ = next_residual_;
    restart_iteration();
    return true;
  }

  void restart_iteration() {
    vertex_ = 0;
    edge_ = 0;
    sum_ = 0;
    next_dangling_ = 0;
    next_residual_ = 0;
  }

  const graph::Graph* graph_ = nullptr;
  double damping_ = 0;
  std::vector<double> rank_;
  std::vector<double> share_;
  std::vector<double> next_rank_;
  std::vector<double> next_share_;
  size_t filled_ = 0;
  double residual_ = 0;
  double dangling_ = 0;

  // Where the present iteration stands.
  uint32_t vertex_ = 0;
  uint64_t edge_ = 0;
  double sum_ = 0;
  double next_dangling_ = 0;
  double next_residual_ = 0;
};

}  // namespace

std::unique_ptr<RankBackend> make_backend(const common::Setup& setup) {
  if constexpr (common::kHasCuda) {
    if (setup.backend == common::Backend::kCuda) return make_cuda_backend(setup.step_ms, setup.spin);
  }
  return std::make_unique<CpuBackend>();
}

}  // namespace pagerank
