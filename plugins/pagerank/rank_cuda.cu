// PageRank on a GPU: a pull over compressed rows of incoming edges, shared out evenly by the merge path. What is slow
// about it is to gather the shares of the edges' sources, from all over memory. So shares are floats, they lie in order
// of the vertices' outgoing edges, and each multiprocessor keeps the first of them, which most edges come from, in its
// shared memory.
#include <algorithm>
#include <chrono>

#include "common/device.cuh"
#include "rank.hpp"

namespace pagerank {
namespace {

using common::Buffer;
using graph::Rmat;

constexpr unsigned kThreads = 256;
constexpr unsigned kScan = kThreads * 7;  // values of a block that adds up

constexpr unsigned kPullThreads = 1024;
constexpr unsigned kPullWarps = kPullThreads / common::kWarp;
constexpr unsigned kItems = 11;  // edges and row ends of a thread; odd: their shared memory lies in different banks
constexpr unsigned kTile = common::kWarp * kItems;
constexpr unsigned kStage = kPullWarps * kTile;  // of a block, for its warps' tiles: shares, then row ends
constexpr size_t kStageBytes = kStage * sizeof(float);
constexpr unsigned kNobody = 0xffffffffu;

/// What an iteration adds up over all vertices.
struct Sums {
  double residual;
  double dangling;
  unsigned blocks;  ///< that have added theirs
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

__global__ void place_edges(Rmat rmat, uint64_t first, uint64_t count, const unsigned* __restrict__ place,
                            unsigned long long* next, unsigned* source) {
  for (uint64_t i = thread_number(); i < count; i += thread_count()) {
    const auto edge = rmat.edge(first + i);
    source[atomicAdd(&next[edge.to], 1ull)] = place[edge.from];
  }
}

__global__ void use_places(uint64_t edges, const unsigned* __restrict__ place, unsigned* source) {
  for (uint64_t i = thread_number(); i < edges; i += thread_count()) source[i] = place[source[i]];
}

// ---- the places of shares: vertices in falling order of outgoing edges, to within 1/32 of their number ----

constexpr unsigned kBins = 1 + 32 * 32;

__device__ unsigned bin_of(unsigned degree) {
  if (degree == 0) return kBins - 1;
  const unsigned power = 31 - __clz(degree);
  return kBins - 2 - (power * 32 + static_cast<unsigned>((uint64_t{degree} << 5 >> power) & 31));
}

__global__ void count_bins(uint64_t vertices, const unsigned* __restrict__ out_degree, unsigned long long* bins) {
  __shared__ unsigned count[kBins];
  for (unsigned b = threadIdx.x; b < kBins; b += kThreads) count[b] = 0;
  __syncthreads();
  for (uint64_t v = thread_number(); v < vertices; v += thread_count()) atomicAdd(&count[bin_of(out_degree[v])], 1u);
  __syncthreads();
  for (unsigned b = threadIdx.x; b < kBins; b += kThreads) {
    if (count[b] > 0) atomicAdd(&bins[b], static_cast<unsigned long long>(count[b]));
  }
}

/// `bins`: where each bin's next vertex goes.
__global__ void place_vertices(uint64_t vertices, const unsigned* __restrict__ out_degree, unsigned long long* bins,
                               unsigned* __restrict__ place) {
  __shared__ unsigned next[kBins];
  for (unsigned b = threadIdx.x; b < kBins; b += kThreads) next[b] = 0;
  __syncthreads();
  for (uint64_t v = thread_number(); v < vertices; v += thread_count()) atomicAdd(&next[bin_of(out_degree[v])], 1u);
  __syncthreads();
  for (unsigned b = threadIdx.x; b < kBins; b += kThreads) {
    if (next[b] > 0) next[b] = static_cast<unsigned>(atomicAdd(&bins[b], static_cast<unsigned long long>(next[b])));
  }
  __syncthreads();
  for (uint64_t v = thread_number(); v < vertices; v += thread_count())
    place[v] = atomicAdd(&next[bin_of(out_degree[v])], 1u);
}

// ---- sums ----

/// Inclusive sums within blocks of kScan values, and each block's total.
__global__ void sum_blocks(const unsigned long long* in, uint64_t count, unsigned long long* out,
                           unsigned long long* totals) {
  __shared__ unsigned long long of_thread[kThreads];
  const uint64_t first = blockIdx.x * kScan + threadIdx.x * kScan / kThreads;
  unsigned long long value[kScan / kThreads], sum = 0;
  for (unsigned i = 0; i < kScan / kThreads; ++i) value[i] = sum += first + i < count ? in[first + i] : 0;
  of_thread[threadIdx.x] = sum;
  for (unsigned d = 1; d < kThreads; d *= 2) {
    __syncthreads();
    const auto add = threadIdx.x >= d ? of_thread[threadIdx.x - d] : 0;
    __syncthreads();
    of_thread[threadIdx.x] += add;
  }
  __syncthreads();
  const auto before = of_thread[threadIdx.x] - sum;
  for (unsigned i = 0; i < kScan / kThreads; ++i) {
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
    const auto end = begin[v + 1] + before[v / kScan];
    next[v] = end - next[v];  // it held the row's size
    begin[v + 1] = end;
    if (v == 0) begin[0] = 0;
  }
}

// ---- the merge path (Merrill, Garland, SC 2016): edges and row ends are one list, cut into tiles of equal length ----

/// How many of the first `diagonal` items are row ends, row v's end coming after its last edge.
template <class Count, class End>
__device__ Count rows_before(Count diagonal, const End* ends, Count rows, Count edges) {
  Count low = diagonal > edges ? diagonal - edges : 0;
  Count high = diagonal < rows ? diagonal : rows;
  while (low < high) {
    const Count middle = low + (high - low) / 2;
    if (static_cast<Count>(ends[middle]) <= diagonal - middle - 1) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// `shared`: of each row, whether several tiles may add to it.
__global__ void cut_tiles(const unsigned long long* begin, uint64_t vertices, uint64_t edges, uint64_t tiles,
                          unsigned* tile_row, uint8_t* shared) {
  for (uint64_t t = thread_number(); t <= tiles; t += thread_count()) {
    const unsigned long long diagonal = t * kTile < vertices + edges ? t * kTile : vertices + edges;
    const auto row = static_cast<unsigned>(rows_before<unsigned long long>(diagonal, begin + 1, vertices, edges));
    tile_row[t] = row;
    shared[row] = 1;
  }
}

/// Adds up shares over incoming edges, one tile a warp after the other. `sum` must be 0 before the first tile where a
/// tile begins or ends: a row that lies in several is added up in it. A block's shared memory: its warps' tiles, then the
/// first `hot` shares.
__global__ void __launch_bounds__(kPullThreads)
    pull(uint64_t first_tile, uint64_t end_tile, const unsigned* __restrict__ tile_row,
         const unsigned long long* __restrict__ begin, const unsigned* __restrict__ source,
         const float* __restrict__ share, unsigned hot, uint64_t vertices, uint64_t edges, double* __restrict__ sum) {
  extern __shared__ float4 memory[];
  const unsigned lane = threadIdx.x % common::kWarp;
  const unsigned warp = threadIdx.x / common::kWarp;
  auto* const stage = reinterpret_cast<float*>(memory);
  float* const value = stage + warp * kTile;
  auto* const table = stage + kStage;
  for (unsigned i = threadIdx.x; i < hot / 4; i += kPullThreads)
    reinterpret_cast<float4*>(table)[i] = reinterpret_cast<const float4*>(share)[i];
  __syncthreads();

  const uint64_t stride = uint64_t{gridDim.x} * kPullWarps;
  for (uint64_t tile = first_tile + blockIdx.x * uint64_t{kPullWarps} + warp; tile < end_tile; tile += stride) {
    const uint64_t items_begin = tile * kTile;
    const uint64_t items_end = items_begin + kTile < vertices + edges ? items_begin + kTile : vertices + edges;
    const uint64_t row0 = tile_row[tile];
    const auto rows = static_cast<unsigned>(tile_row[tile + 1] - row0);
    const uint64_t edge0 = items_begin - row0;
    const auto count = static_cast<unsigned>(items_end - items_begin) - rows;
    // Sources are read once and share the cache with nobody; shares are read again and again.
    unsigned from[kItems];
    float got[kItems];
#pragma unroll
    for (unsigned i = 0; i < kItems; ++i) {
      const unsigned at = lane + i * common::kWarp;
      from[i] = at < count ? __ldcs(source + edge0 + at) : kNobody;
    }
#pragma unroll
    for (unsigned i = 0; i < kItems; ++i) {
      if (from[i] < hot) {
        got[i] = table[from[i]];
      } else {
        got[i] = from[i] != kNobody ? __ldcg(share + from[i]) : 0;
      }
    }
    if (rows == 0) {  // in the middle of a long row
      double all = 0;
#pragma unroll
      for (unsigned i = 0; i < kItems; ++i) all += got[i];
#pragma unroll
      for (unsigned d = common::kWarp / 2; d > 0; d /= 2) all += __shfl_down_sync(0xffffffffu, all, d);
      if (lane == 0) atomicAdd(&sum[row0], all);
      continue;
    }
#pragma unroll
    for (unsigned i = 0; i < kItems; ++i) {
      if (from[i] != kNobody) value[lane + i * common::kWarp] = got[i];
    }
    auto* const ends = reinterpret_cast<unsigned*>(value) + count;
    for (unsigned r = lane; r < rows; r += common::kWarp) ends[r] = static_cast<unsigned>(begin[row0 + r + 1] - edge0);
    __syncwarp();

    const unsigned items = rows + count;
    const unsigned diagonal = lane * kItems < items ? lane * kItems : items;
    const unsigned stop = diagonal + kItems < items ? diagonal + kItems : items;
    const unsigned start_row = rows_before<unsigned>(diagonal, ends, rows, count);
    unsigned row = start_row;
    unsigned edge = diagonal - start_row;
    unsigned end = row < rows ? ends[row] : kNobody;
    double running = 0;
    double first_sum = 0;  // of start_row, if it ends here
    for (unsigned at = diagonal; at < stop; ++at) {
      if (edge < end) {
        running += value[edge++];
        continue;
      }
      if (row == start_row) {
        first_sum = running;
      } else {
        sum[row0 + row] = running;  // a row that begins and ends in this thread's items
      }
      running = 0;
      ++row;
      end = row < rows ? ends[row] : kNobody;
    }

    // What a thread leaves of its last row goes to the thread that ends the row: sums by row over the threads before.
    double carried = running;
#pragma unroll
    for (unsigned d = 1; d < common::kWarp; d *= 2) {
      const unsigned other_row = __shfl_up_sync(0xffffffffu, row, d);
      const double other = __shfl_up_sync(0xffffffffu, carried, d);
      if (lane >= d && other_row == row) carried += other;
    }
    double before = __shfl_up_sync(0xffffffffu, carried, 1);
    if (lane == 0) before = 0;
    if (row > start_row) {
      if (start_row == 0) {
        atomicAdd(&sum[row0], first_sum + before);  // earlier tiles may have a part of it
      } else {
        sum[row0 + start_row] = first_sum + before;
      }
    }
    if (lane == common::kWarp - 1 && carried != 0) atomicAdd(&sum[row0 + row], carried);  // ends in a later tile
    __syncwarp();
  }
}

// ---- vertices ----

constexpr unsigned kVerticesAtOnce = 4;  // that a thread reads before it computes, to hide what memory takes

/// Ranks and shares from the sums; clears those that tiles add to, and `last` for the iteration after the next one.
/// `result`: the host's.
__global__ void __launch_bounds__(kThreads)
    rank_vertices(uint64_t vertices, double damping, Sums* last, Sums* now, Sums* result, double* __restrict__ sum,
                  const uint8_t* __restrict__ shared, double* __restrict__ rank, float* __restrict__ share,
                  const unsigned* __restrict__ place, const unsigned* __restrict__ out_degree) {
  const double base = (1 - damping + damping * last->dangling) / static_cast<double>(vertices);
  double residual = 0;
  double dangling = 0;
  for (uint64_t first = thread_number(); first < vertices; first += thread_count() * kVerticesAtOnce) {
    double next[kVerticesAtOnce], before[kVerticesAtOnce];
    unsigned degree[kVerticesAtOnce], to[kVerticesAtOnce];
    bool clear[kVerticesAtOnce];
#pragma unroll
    for (unsigned j = 0; j < kVerticesAtOnce; ++j) {
      const uint64_t v = first + j * thread_count();
      if (v >= vertices) continue;
      next[j] = sum[v];
      before[j] = rank[v];
      degree[j] = out_degree[v];
      to[j] = place[v];
      clear[j] = shared[v] != 0;
    }
#pragma unroll
    for (unsigned j = 0; j < kVerticesAtOnce; ++j) {
      const uint64_t v = first + j * thread_count();
      if (v >= vertices) continue;
      next[j] = base + damping * next[j];
      if (clear[j]) sum[v] = 0;
      residual += fabs(next[j] - before[j]);
      rank[v] = next[j];
      if (degree[j] == 0) dangling += next[j];
      share[to[j]] = degree[j] == 0 ? 0 : static_cast<float>(next[j]) / static_cast<float>(degree[j]);
    }
  }
  residual = common::block_sum(residual);
  dangling = common::block_sum(dangling);
  if (threadIdx.x == 0) {
    atomicAdd(&now->residual, residual);
    atomicAdd(&now->dangling, dangling);
    __threadfence();
    if (atomicAdd(&now->blocks, 1u) == gridDim.x - 1) {  // all have added theirs, and have read `last`
      result->residual = atomicAdd(&now->residual, 0.0);
      *last = Sums{};
    }
  }
}

/// Before the first iteration: shares of the ranks that are there, or of the uniform ones.
__global__ void start_vertices(uint64_t vertices, bool uniform, Sums* now, double* rank, float* share,
                               const unsigned* place, const unsigned* out_degree) {
  double dangling = 0;
  for (uint64_t v = thread_number(); v < vertices; v += thread_count()) {
    const double value = uniform ? 1.0 / static_cast<double>(vertices) : rank[v];
    rank[v] = value;
    const unsigned degree = out_degree[v];
    if (degree == 0) dangling += value;
    share[place[v]] = degree == 0 ? 0 : static_cast<float>(value) / static_cast<float>(degree);
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
    order_shares();
    use_places<<<blocks(edges_), kThreads, 0, device_.stream()>>>(edges_, place_.data(), source_.data());
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
        place_edges<<<blocks(part), kThreads, 0, device_.stream()>>>(rmat_, at_, part, place_.data(), row_size(),
                                                                     source_.data());
        break;
      case Phase::kSum:
        sum_rows();
        order_shares();
        device_.wait("making the graph");
        phase_ = Phase::kPlace;
        return false;
      case Phase::kCut:
        device_.clear(shared_.data(), vertices_ + 1);
        cut_tiles<<<blocks(tiles_ + 1), kThreads, 0, device_.stream()>>>(begin_.data(), vertices_, edges_, tiles_,
                                                                         tile_row_.data(), shared_.data());
        device_.clear(sum_.data(), vertices_ + 1);
        start_vertices_(true);
        device_.wait("making the graph");
        phase_ = Phase::kRank;
        return false;
      case Phase::kRank:
        pull<<<pull_blocks(part), kPullThreads, pull_bytes(), device_.stream()>>>(
            at_, at_ + part, tile_row_.data(), begin_.data(), source_.data(), share_.data(), hot_, vertices_, edges_,
            sum_.data());
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
    for (auto* buffer : {&rank_, &sum_}) buffer->release();
    for (auto* buffer : {&source_, &out_degree_, &place_, &tile_row_}) buffer->release();
    for (auto* buffer : {&begin_, &totals_, &bins_}) buffer->release();
    share_.release();
    shared_.release();
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
      device_.load(count_edges, place_edges, use_places, count_bins, place_vertices, sum_blocks, sum_totals, finish_rows,
                   cut_tiles, pull, rank_vertices, start_vertices);
      result_.resize(1);
      shared_bytes_ = device_.most_shared_memory(pull);
    }
    vertices_ = vertices;
    edges_ = edges;
    damping_ = damping;
    tiles_ = (vertices + edges + kTile - 1) / kTile;
    begin_.resize(vertices + 1);
    source_.resize(edges);
    out_degree_.resize(vertices);
    place_.resize(vertices);
    bins_.resize(kBins);
    tile_row_.resize(tiles_ + 1);
    totals_.resize((vertices + kScan - 1) / kScan);
    sums_.resize(2);
    rank_.resize(vertices);
    share_.resize(vertices);
    hot_ = static_cast<unsigned>(std::min<uint64_t>(vertices, (shared_bytes_ - kStageBytes) / sizeof(float)) / 4 * 4);
    shared_.resize(vertices + 1);
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
  }

  void order_shares() {
    device_.clear(bins_.data(), kBins);
    count_bins<<<blocks(vertices_), kThreads, 0, device_.stream()>>>(vertices_, out_degree_.data(), bins_.data());
    sum_totals<<<1, kThreads, 0, device_.stream()>>>(bins_.data(), kBins);
    place_vertices<<<blocks(vertices_), kThreads, 0, device_.stream()>>>(vertices_, out_degree_.data(), bins_.data(),
                                                                         place_.data());
  }

  // One block a multiprocessor: the table takes all of its shared memory.
  unsigned pull_blocks(uint64_t tiles) const {
    return static_cast<unsigned>(std::min<uint64_t>((tiles + kPullWarps - 1) / kPullWarps, device_.multiprocessors()));
  }
  size_t pull_bytes() const { return kStageBytes + hot_ * sizeof(float); }

  void start_vertices_(bool uniform) {
    device_.clear(sums_.data(), 2);
    now_ = 0;
    start_vertices<<<blocks(vertices_), kThreads, 0, device_.stream()>>>(vertices_, uniform, sums_.data(), rank_.data(),
                                                                         share_.data(), place_.data(),
                                                                         out_degree_.data());
  }

  void end_iteration() {
    Sums* last = sums_.data() + now_;
    now_ = 1 - now_;
    Sums* now = sums_.data() + now_;
    rank_vertices<<<blocks(vertices_), kThreads, 0, device_.stream()>>>(vertices_, damping_, last, now, result_.data(),
                                                                        sum_.data(), shared_.data(), rank_.data(),
                                                                        share_.data(), place_.data(),
                                                                        out_degree_.data());
    common::check(cudaGetLastError(), "computing ranks");
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
  size_t shared_bytes_ = 0;  // that a block can have
  unsigned hot_ = 0;         // shares that every multiprocessor keeps in its shared memory
  common::PinnedBuffer<Sums> result_;
  Buffer<unsigned long long> begin_;
  Buffer<unsigned> source_;  // of an edge: the place of its source's share
  Buffer<unsigned> out_degree_;
  Buffer<unsigned> place_;  // of a vertex's share
  Buffer<unsigned> tile_row_;
  Buffer<unsigned long long> totals_;
  Buffer<unsigned long long> bins_;
  Buffer<Sums> sums_;
  Buffer<double> rank_;
  Buffer<float> share_;
  Buffer<double> sum_;
  Buffer<uint8_t> shared_;
};

}  // namespace

std::unique_ptr<RankBackend> make_cuda_backend(double step_ms, bool spin) {
  return std::make_unique<CudaBackend>(step_ms, spin);
}

}  // namespace pagerank
