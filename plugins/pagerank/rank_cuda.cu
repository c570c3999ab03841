// PageRank on a GPU: a pull over compressed rows of incoming edges, shared out evenly by the merge path.
#include <chrono>

#include "common/device.cuh"
#include "rank.hpp"

namespace pagerank {
namespace {

using common::Buffer;
using graph::Rmat;

constexpr unsigned kThreads = 256;
constexpr unsigned kItems = 7;  // edges and row ends of a thread; odd: their shared memory lies in different banks
constexpr uint64_t kTile = kThreads * kItems;

/// What an iteration adds up over all vertices.
struct Sums {
  double residual;
  double dangling;
};

__device__ uint64_t thread_number() {
  return blockIdx.x * uint64_t{kThreads} + threadIdx.x;
}
__device__ uint64_t thread_count() {
  return gridDim.x * uint64_t{kThreads};
}

// ---- making the graph. Its edges are made twice, to count and to place them, rather than kept ----

__global__ void count_edges(Rmat rmat, uint64_t first, uint64_t count, unsigned long long* row_size,
                            unsigned* out_degree) {
  for (uint64_t i = thread_number(); i < count; i += thread_count()) {
    const auto edge = rmat.edge(first + i);
    atomicAdd(&row_size[edge.to], 1ull);
    atomicAdd(&out_degree[edge.from], 1u);
  }
}

__global__ void place_edges(Rmat rmat, uint64_t first, uint64_t count, unsigned long long* next, unsigned* source) {
  for (uint64_t i = thread_number(); i < count; i += thread_count()) {
    const auto edge = rmat.edge(first + i);
    source[atomicAdd(&next[edge.to], 1ull)] = edge.from;
  }
}

/// Inclusive sums within blocks of kTile values, and each block's total.
__global__ void sum_blocks(const unsigned long long* in, uint64_t count, unsigned long long* out,
                           unsigned long long* totals) {
  __shared__ unsigned long long of_thread[kThreads];
  const uint64_t first = blockIdx.x * kTile + threadIdx.x * kItems;
  unsigned long long value[kItems], sum = 0;
  for (unsigned i = 0; i < kItems; ++i) value[i] = sum += first + i < count ? in[first + i] : 0;
  of_thread[threadIdx.x] = sum;
  for (unsigned d = 1; d < kThreads; d *= 2) {
    __syncthreads();
    const auto add = threadIdx.x >= d ? of_thread[threadIdx.x - d] : 0;
    __syncthreads();
    of_thread[threadIdx.x] += add;
  }
  __syncthreads();
  const auto before = of_thread[threadIdx.x] - sum;
  for (unsigned i = 0; i < kItems; ++i) {
    if (first + i < count) out[first + i] = value[i] + before;
  }
  if (threadIdx.x == kThreads - 1) totals[blockIdx.x] = of_thread[threadIdx.x];
}

/// Turns totals into what comes before each; one block.
__global__ void sum_totals(unsigned long long* totals, uint64_t count) {
  __shared__ unsigned long long of_thread[kThreads];
  unsigned long long before_all = 0;
  for (uint64_t at = 0; at < count; at += kThreads) {
    const auto own = at + threadIdx.x < count ? totals[at + threadIdx.x] : 0;
    of_thread[threadIdx.x] = own;
    for (unsigned d = 1; d < kThreads; d *= 2) {
      __syncthreads();
      const auto add = threadIdx.x >= d ? of_thread[threadIdx.x - d] : 0;
      __syncthreads();
      of_thread[threadIdx.x] += add;
    }
    __syncthreads();
    if (at + threadIdx.x < count) totals[at + threadIdx.x] = before_all + of_thread[threadIdx.x] - own;
    before_all += of_thread[kThreads - 1];
    __syncthreads();
  }
}

/// begin[v + 1] holds the sum within its block: makes it the whole sum, and next[v] where v's row begins.
__global__ void finish_rows(unsigned long long* begin, const unsigned long long* before, uint64_t vertices,
                            unsigned long long* next) {
  for (uint64_t v = thread_number(); v < vertices; v += thread_count()) {
    const auto end = begin[v + 1] + before[v / kTile];
    next[v] = end - next[v];  // it held the row's size
    begin[v + 1] = end;
    if (v == 0) begin[0] = 0;
  }
}

// ---- the merge path (Merrill, Garland, SC 2016): edges and row ends are one list, cut into tiles of equal length ----

/// How many of the first `diagonal` items are row ends, row v's end coming after its last edge.
template <class Count>
__device__ Count rows_before(Count diagonal, const Count* ends, Count rows, Count edges) {
  Count low = diagonal > edges ? diagonal - edges : 0;
  Count high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const Count middle = low + (high - low) / 2;
    if (ends[middle] <= diagonal - middle - 1) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void cut_tiles(const unsigned long long* begin, uint64_t vertices, uint64_t edges, uint64_t tiles,
                          unsigned* tile_row) {
  for (uint64_t t = thread_number(); t <= tiles; t += thread_count()) {
    const unsigned long long diagonal = t * kTile < vertices + edges ? t * kTile : vertices + edges;
    tile_row[t] = static_cast<unsigned>(rows_before<unsigned long long>(diagonal, begin + 1, vertices, edges));
  }
}

/// Adds up shares over incoming edges for one tile a block. `sum` must be 0 before the first tile: a row that lies in
/// several tiles is added up in it.
__global__ void __launch_bounds__(kThreads)
    pull(uint64_t first_tile, const unsigned* __restrict__ tile_row, const unsigned long long* __restrict__ begin,
         const unsigned* __restrict__ source, const double* __restrict__ share, uint64_t vertices, uint64_t edges,
         double* __restrict__ sum) {
  __shared__ double value[kTile];
  __shared__ unsigned ends[kTile + 1];
  __shared__ unsigned warp_row[kThreads / common::kWarp];
  __shared__ double warp_sum[kThreads / common::kWarp];
  const uint64_t tile = first_tile + blockIdx.x;
  const uint64_t items_begin = tile * kTile;
  const uint64_t items_end = items_begin + kTile < vertices + edges ? items_begin + kTile : vertices + edges;
  const uint64_t row0 = tile_row[tile];
  const auto rows = static_cast<unsigned>(tile_row[tile + 1] - row0);
  const uint64_t edge0 = items_begin - row0;
  const auto count = static_cast<unsigned>(items_end - items_begin - rows);
  // Sources are read once and share the cache with nobody; shares are read again and again.
  unsigned from[kItems];
#pragma unroll
  for (unsigned i = 0; i < kItems; ++i) {
    const unsigned at = threadIdx.x + i * kThreads;
    from[i] = at < count ? __ldcs(source + edge0 + at) : 0;
  }
  for (unsigned r = threadIdx.x; r < rows; r += kThreads) ends[r] = static_cast<unsigned>(begin[row0 + r + 1] - edge0);
#pragma unroll
  for (unsigned i = 0; i < kItems; ++i) {
    const unsigned at = threadIdx.x + i * kThreads;
    if (at < count) value[at] = __ldg(share + from[i]);
  }
  __syncthreads();

  const unsigned items = rows + count;
  const unsigned diagonal = threadIdx.x * kItems < items ? threadIdx.x * kItems : items;
  const unsigned stop = diagonal + kItems < items ? diagonal + kItems : items;
  const unsigned start_row = rows_before<unsigned>(diagonal, ends, rows, count);
  unsigned row = start_row;
  unsigned edge = diagonal - start_row;
  double running = 0;
  double first_sum = 0;  // of start_row, if it ends here
  while (row + edge < stop) {
    if (row < rows && edge >= ends[row]) {
      if (row == start_row) {
        first_sum = running;
      } else {
        sum[row0 + row] = running;  // a row that begins and ends in this thread's items
      }
      running = 0;
      ++row;
    } else {
      running += value[edge++];
    }
  }

  // What a thread leaves of its last row goes to the thread that ends the row: sums by row over the threads before.
  const unsigned lane = threadIdx.x % common::kWarp;
  const unsigned warp = threadIdx.x / common::kWarp;
  double carried = running;
#pragma unroll
  for (unsigned d = 1; d < common::kWarp; d *= 2) {
    const unsigned other_row = __shfl_up_sync(0xffffffffu, row, d);
    const double other = __shfl_up_sync(0xffffffffu, carried, d);
    if (lane >= d && other_row == row) carried += other;
  }
  if (lane == common::kWarp - 1) {
    warp_row[warp] = row;
    warp_sum[warp] = carried;
  }
  double before = __shfl_up_sync(0xffffffffu, carried, 1);
  if (lane == 0) before = 0;
  __syncthreads();
  for (unsigned w = warp; w > 0 && warp_row[w - 1] == start_row; --w) before += warp_sum[w - 1];
  if (row > start_row) {
    if (start_row == 0) {
      atomicAdd(&sum[row0], first_sum + before);  // earlier tiles may have a part of it
    } else {
      sum[row0 + start_row] = first_sum + before;
    }
  }
  if (threadIdx.x == kThreads - 1) {
    if (row == start_row) running += before;
    if (running != 0) atomicAdd(&sum[row0 + row], running);  // its end is in a later tile
  }
}

// ---- vertices ----

/// Ranks and shares from the sums; clears these.
__global__ void rank_vertices(uint64_t vertices, double damping, const Sums* last, Sums* now, double* __restrict__ sum,
                              double* __restrict__ rank, double* __restrict__ share,
                              const unsigned* __restrict__ out_degree) {
  const double base = (1 - damping + damping * last->dangling) / static_cast<double>(vertices);
  double residual = 0;
  double dangling = 0;
  for (uint64_t v = thread_number(); v < vertices; v += thread_count()) {
    const double next = base + damping * sum[v];
    sum[v] = 0;
    residual += fabs(next - rank[v]);
    rank[v] = next;
    const unsigned degree = out_degree[v];
    if (degree == 0) dangling += next;
    share[v] = degree == 0 ? 0 : next / degree;
  }
  residual = common::block_sum(residual);
  dangling = common::block_sum(dangling);
  if (threadIdx.x == 0) {
    atomicAdd(&now->residual, residual);
    atomicAdd(&now->dangling, dangling);
  }
}

/// Before the first iteration: shares of the ranks that are there, or of the uniform ones.
__global__ void start_vertices(uint64_t vertices, bool uniform, Sums* now, double* rank, double* share,
                               const unsigned* out_degree) {
  double dangling = 0;
  for (uint64_t v = thread_number(); v < vertices; v += thread_count()) {
    const double value = uniform ? 1.0 / static_cast<double>(vertices) : rank[v];
    rank[v] = value;
    const unsigned degree = out_degree[v];
    if (degree == 0) dangling += value;
    share[v] = degree == 0 ? 0 : value / degree;
  }
  dangling = common::block_sum(dangling);
  if (threadIdx.x == 0) atomicAdd(&now->dangling, dangling);
}

class CudaBackend final : public RankBackend {
 public:
  CudaBackend(double step_ms, bool spin) : pull_pace_(step_ms), edge_pace_(step_ms), spin_(spin) {}

  void begin(const graph::Graph& graph, double damping) override {
    begin_any(graph.vertices, graph.source.size(), damping);
    phase_ = Phase::kCut;
    if (graph_ == &graph) return;  // again the same
    graph_ = &graph;
    device_.upload(reinterpret_cast<const unsigned long long*>(graph.begin.data()), graph.begin.size(), begin_.data());
    device_.upload(graph.source.data(), graph.source.size(), source_.data());
    device_.upload(graph.out_degree.data(), graph.out_degree.size(), out_degree_.data());
    device_.wait("copying the graph to the GPU");
  }

  bool begin(const Rmat& rmat, double damping) override {
    rmat_ = rmat;
    begin_any(rmat.vertices(), rmat.edges(), damping);
    phase_ = Phase::kClear;
    return true;
  }

  bool has_graph() const override { return phase_ == Phase::kRank; }

  void start_from(const double* ranks) override {
    device_.upload(ranks, vertices_, rank_.data());
    start_vertices_(false);
    device_.wait("going on from saved ranks");
  }

  bool advance() override {
    const auto began = std::chrono::steady_clock::now();
    const uint64_t total = phase_ == Phase::kRank ? tiles_ : edges_;
    auto& pace = phase_ == Phase::kRank ? pull_pace_ : edge_pace_;
    const uint64_t part = pace.next(total - at_, total);
    bool iterated = false;
    switch (phase_) {
      case Phase::kClear:
        device_.clear(row_size(), vertices_);
        device_.clear(out_degree_.data(), vertices_);
        device_.wait("making the graph");
        phase_ = Phase::kCount;
        return false;
      case Phase::kCount:
        count_edges<<<blocks(part), kThreads, 0, device_.stream()>>>(rmat_, at_, part, row_size(), out_degree_.data());
        break;
      case Phase::kPlace:
        place_edges<<<blocks(part), kThreads, 0, device_.stream()>>>(rmat_, at_, part, row_size(), source_.data());
        break;
      case Phase::kSum:
        sum_rows();
        phase_ = Phase::kPlace;
        return false;
      case Phase::kCut:
        cut_tiles<<<blocks(tiles_ + 1), kThreads, 0, device_.stream()>>>(begin_.data(), vertices_, edges_, tiles_,
                                                                         tile_row_.data());
        device_.clear(sum_.data(), vertices_ + 1);
        start_vertices_(true);
        device_.wait("making the graph");
        phase_ = Phase::kRank;
        return false;
      case Phase::kRank:
        pull<<<static_cast<unsigned>(part), kThreads, 0, device_.stream()>>>(
            at_, tile_row_.data(), begin_.data(), source_.data(), share_.data(), vertices_, edges_, sum_.data());
        iterated = at_ + part == total;
        if (iterated) end_iteration();
        break;
    }
    device_.wait(phase_ == Phase::kRank ? "computing ranks" : "making the graph");
    pace.done(part, std::chrono::steady_clock::now() - began);
    at_ += part;
    if (at_ < total) return false;
    at_ = 0;
    if (phase_ == Phase::kCount) phase_ = Phase::kSum;
    if (phase_ == Phase::kPlace) phase_ = Phase::kCut;
    if (iterated) residual_ = result_.data()->residual;
    return iterated;
  }

  double residual() const override { return residual_; }

  void read_ranks(uint64_t begin, uint64_t count, double* ranks) override {
    device_.download(rank_.data() + begin, count, ranks);
  }

  void release() override {
    for (auto* buffer : {&rank_, &share_, &sum_}) buffer->release();
    begin_.release();
    source_.release();
    out_degree_.release();
    tile_row_.release();
    totals_.release();
    sums_.release();
    result_.release();
    graph_ = nullptr;
    device_.close();
  }

 private:
  enum class Phase { kClear, kCount, kSum, kPlace, kCut, kRank };

  unsigned blocks(uint64_t work) const {
    const uint64_t needed = (work + kThreads - 1) / kThreads;
    return static_cast<unsigned>(std::max<uint64_t>(1, std::min<uint64_t>(needed, device_.multiprocessors() * 8)));
  }

  void begin_any(uint64_t vertices, uint64_t edges, double damping) {
    if (!device_.is_open()) {
      device_.open(spin_);
      device_.load(count_edges, place_edges, sum_blocks, sum_totals, finish_rows, cut_tiles, pull, rank_vertices,
                   start_vertices);
      result_.resize(1);
    }
    vertices_ = vertices;
    edges_ = edges;
    damping_ = damping;
    tiles_ = (vertices + edges + kTile - 1) / kTile;
    begin_.resize(vertices + 1);
    source_.resize(edges);
    out_degree_.resize(vertices);
    tile_row_.resize(tiles_ + 1);
    totals_.resize((vertices + kTile - 1) / kTile);
    sums_.resize(2);
    rank_.resize(vertices);
    share_.resize(vertices);
    sum_.resize(vertices + 1);  // the last tile's last row lies behind the last vertex
    at_ = 0;
    residual_ = 0;
  }

  // While the graph is made, the sums' memory holds each row's size, then where its next edge goes.
  unsigned long long* row_size() const { return reinterpret_cast<unsigned long long*>(sum_.data()); }

  void sum_rows() {
    const auto groups = static_cast<unsigned>(totals_.size());
    sum_blocks<<<groups, kThreads, 0, device_.stream()>>>(row_size(), vertices_, begin_.data() + 1, totals_.data());
    sum_totals<<<1, kThreads, 0, device_.stream()>>>(totals_.data(), groups);
    finish_rows<<<blocks(vertices_), kThreads, 0, device_.stream()>>>(begin_.data(), totals_.data(), vertices_,
                                                                      row_size());
    device_.wait("making the graph");
  }

  void start_vertices_(bool uniform) {
    device_.clear(sums_.data(), 2);
    now_ = 0;
    start_vertices<<<blocks(vertices_), kThreads, 0, device_.stream()>>>(vertices_, uniform, sums_.data(), rank_.data(),
                                                                         share_.data(), out_degree_.data());
  }

  void end_iteration() {
    Sums* last = sums_.data() + now_;
    now_ = 1 - now_;
    Sums* now = sums_.data() + now_;
    device_.clear(now, 1);
    rank_vertices<<<blocks(vertices_), kThreads, 0, device_.stream()>>>(
        vertices_, damping_, last, now, sum_.data(), rank_.data(), share_.data(), out_degree_.data());
    common::check(cudaMemcpyAsync(result_.data(), now, sizeof(Sums), cudaMemcpyDeviceToHost, device_.stream()),
                  "reading the residual");
  }

  common::Device device_;
  common::Pace pull_pace_;
  common::Pace edge_pace_;
  bool spin_;
  const graph::Graph* graph_ = nullptr;  // that was copied
  Rmat rmat_{2, 1, 0};
  uint64_t vertices_ = 0;
  uint64_t edges_ = 0;
  uint64_t tiles_ = 0;
  double damping_ = 0;
  double residual_ = 0;
  Phase phase_ = Phase::kRank;
  uint64_t at_ = 0;   // of the present phase's tiles or edges
  unsigned now_ = 0;  // the last iteration's sums
  common::PinnedBuffer<Sums> result_;
  Buffer<unsigned long long> begin_;
  Buffer<unsigned> source_;
  Buffer<unsigned> out_degree_;
  Buffer<unsigned> tile_row_;
  Buffer<unsigned long long> totals_;
  Buffer<Sums> sums_;
  Buffer<double> rank_;
  Buffer<double> share_;
  Buffer<double> sum_;
};

}  // namespace

std::unique_ptr<RankBackend> make_cuda_backend(double step_ms, bool spin) {
  return std::make_unique<CudaBackend>(step_ms, spin);
}

}  // namespace pagerank
