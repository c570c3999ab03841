// Matrix factorisation on a GPU: many edges at once, without locks (Hogwild, Recht et al., NIPS 2011). Where two edges
// in flight share a vertex one update may be lost; that costs progress, never stability.
//
// What is slow about it is to read and write the factors, from all over memory. So within each of some blocks of edges,
// those of one vertex lie side by side, and its factors stay in registers from the first of them to the last. Blocks,
// because a sweep in the order of all vertices learns more slowly than one in random order.
#include <algorithm>
#include <chrono>

#include "common/device.cuh"
#include "factors.hpp"

namespace sgd {
namespace {

using common::Buffer;
using graph::Edge;
using graph::Rmat;

constexpr unsigned kThreads = 256;
constexpr unsigned kAtOnce = 4;  // edges that a group of lanes has in flight, to hide what memory takes
constexpr unsigned kBlocks = 16;  // of edges, in a sweep
constexpr uint32_t kNobody = 0xffffffff;

constexpr unsigned kVerticesPerEdge = 8;  // at least so many for each edge in flight

__device__ uint64_t thread_number() {
  return blockIdx.x * uint64_t{kThreads} + threadIdx.x;
}
__device__ uint64_t thread_count() {
  return gridDim.x * uint64_t{kThreads};
}

// ---- the edges of a block, by vertex: how many it has, where the first of them goes, then where the next one does ----

/// Edges as they are made: twice, to count and to place them, rather than kept.
struct Made {
  Rmat rmat;
  uint64_t rating_seed;
  uint64_t first;
  __device__ Edge edge(uint64_t i) const { return rmat.edge(first + i); }
  __device__ float rating(uint64_t, Edge edge) const { return graph::planted_rating(rating_seed, edge); }
};

/// Edges that were copied to the GPU.
struct Given {
  const uint2* edges;
  const float* ratings;
  __device__ Edge edge(uint64_t i) const { return {edges[i].x, edges[i].y}; }
  __device__ float rating(uint64_t i, Edge) const { return ratings[i]; }
};

template <class Source>
__global__ void count_edges(Source source, uint64_t count, unsigned* of_vertex) {
  for (uint64_t i = thread_number(); i < count; i += thread_count()) atomicAdd(&of_vertex[source.edge(i).from], 1u);
}

/// Turns each vertex's number of edges into the place of its first one. `taken`: places so far.
__global__ void reserve_places(uint64_t vertices, unsigned* of_vertex, unsigned* taken) {
  const unsigned lane = threadIdx.x % common::kWarp;
  for (uint64_t first = thread_number() - lane; first < vertices; first += thread_count()) {
    const uint64_t v = first + lane;
    const unsigned own = v < vertices ? of_vertex[v] : 0;
    unsigned sum = own;
    for (unsigned d = 1; d < common::kWarp; d *= 2) {
      const unsigned before = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += before;
    }
    unsigned base = 0;
    if (lane == common::kWarp - 1) base = atomicAdd(taken, sum);
    base = __shfl_sync(0xffffffffu, base, common::kWarp - 1);
    if (v < vertices) of_vertex[v] = base + sum - own;
  }
}

template <class Source>
__global__ void place_edges(Source source, uint64_t count, unsigned* next, uint2* edges, float* ratings) {
  for (uint64_t i = thread_number(); i < count; i += thread_count()) {
    const Edge edge = source.edge(i);
    const unsigned place = atomicAdd(&next[edge.from], 1u);
    edges[place] = make_uint2(edge.from, edge.to);
    ratings[place] = source.rating(i, edge);
  }
}

__global__ void make_factors(uint64_t seed, Side side, uint64_t count, unsigned factors, float* out) {
  for (uint64_t i = thread_number(); i < count; i += thread_count())
    out[i] = first_factor(seed, side, i / factors, static_cast<unsigned>(i % factors), factors);
}

__device__ float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

__device__ float4 moved(float4 at, float4 other, float error, float rate, float regularisation) {
  const auto next = [&](float x, float y) { return x + rate * (error * y - regularisation * x); };
  return make_float4(next(at.x, other.x), next(at.y, other.y), next(at.z, other.z), next(at.w, other.w));
}

/// Visits `count` edges; kLanes threads share one, four factors each, and the first `groups` of them work, each on
/// `run` edges in a row, a multiple of kAtOnce. Edges and ratings begin at a multiple of 16 bytes, and may be read up to
/// the next one behind their end.
template <unsigned kLanes>
__global__ void __launch_bounds__(kThreads)
    visit(const uint2* __restrict__ edges, const float* __restrict__ ratings, uint64_t count, uint64_t groups,
          uint64_t run, float4* p, float4* q, float mean, float rate, float regularisation, double* squared_error) {
  static_assert(kAtOnce % 4 == 0);
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned group_mask = (kLanes == 32 ? 0xffffffffu : (1u << kLanes % 32) - 1)
                              << (threadIdx.x % 32 / kLanes * kLanes);
  const uint64_t group = thread_number() / kLanes;
  const uint64_t begin = group < groups ? group * run : count;
  const uint64_t end = begin + run < count ? begin + run : count;
  uint32_t held = kNobody;  // the vertex whose factors are in `own`
  float4 own{};
  double sum = 0;
  for (uint64_t at = begin; at < end; at += kAtOnce) {
    uint32_t from[kAtOnce], to[kAtOnce];
    float rating[kAtOnce];
#pragma unroll
    for (unsigned j = 0; j < kAtOnce; j += 2) {
      const uint4 two = __ldg(reinterpret_cast<const uint4*>(edges + at + j));
      from[j] = two.x, to[j] = two.y, from[j + 1] = two.z, to[j + 1] = two.w;
    }
#pragma unroll
    for (unsigned j = 0; j < kAtOnce; j += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(ratings + at + j));
      rating[j] = four.x, rating[j + 1] = four.y, rating[j + 2] = four.z, rating[j + 3] = four.w;
    }
    // Past the first-level caches, which would keep values that other multiprocessors have changed.
    float4 first[kAtOnce], other[kAtOnce];
    uint32_t before = held;
#pragma unroll
    for (unsigned j = 0; j < kAtOnce; ++j) {
      if (at + j >= end) continue;
      other[j] = __ldcg(q + uint64_t{to[j]} * kLanes + lane);
      if (from[j] != before) first[j] = __ldcg(p + uint64_t{from[j]} * kLanes + lane);
      before = from[j];
    }
#pragma unroll
    for (unsigned j = 0; j < kAtOnce; ++j) {
      if (at + j >= end) continue;
      if (from[j] != held) {
        if (held != kNobody) __stcg(p + uint64_t{held} * kLanes + lane, own);
        own = first[j];
        held = from[j];
      }
      float product = dot(own, other[j]);
#pragma unroll
      for (unsigned d = kLanes / 2; d > 0; d /= 2) product += __shfl_xor_sync(group_mask, product, d);
      const float error = rating[j] - mean - product;
      if (lane == 0) sum += double{error} * error;
      __stcg(q + uint64_t{to[j]} * kLanes + lane, moved(other[j], own, error, rate, regularisation));
      own = moved(own, other[j], error, rate, regularisation);
    }
  }
  if (held != kNobody) __stcg(p + uint64_t{held} * kLanes + lane, own);
  sum = common::block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(squared_error, sum);
}

class CudaBackend final : public FactorBackend {
 public:
  CudaBackend(double step_ms, bool spin) : pace_(step_ms), spin_(spin) {}

  void begin(const Ratings& ratings, const Settings& settings) override {
    begin_any(ratings.vertices, ratings.edges.size(), settings);
    static_assert(sizeof(Edge) == sizeof(uint2));
    Buffer<uint2> edges;
    Buffer<float> values;
    edges.resize(block_edges());
    values.resize(block_edges());
    for (uint64_t first = 0; first < edge_count_; first += block_edges()) {
      const uint64_t count = std::min(block_edges(), edge_count_ - first);
      device_.upload(reinterpret_cast<const uint2*>(ratings.edges.data()) + first, count, edges.data());
      device_.upload(ratings.ratings.data() + first, count, values.data());
      order_block(Given{edges.data(), values.data()}, first, count);
    }
    device_.wait("copying the ratings to the GPU");
    of_vertex_.release();
  }

  bool begin(const Rmat& rmat, uint64_t rating_seed, const Settings& settings) override {
    begin_any(rmat.vertices(), rmat.edges(), settings);
    for (uint64_t first = 0; first < edge_count_; first += block_edges())
      order_block(Made{rmat, rating_seed, first}, first, std::min(block_edges(), edge_count_ - first));
    device_.wait("making the graph");
    of_vertex_.release();
    return true;
  }

  bool advance(float learning_rate) override {
    const auto began = std::chrono::steady_clock::now();
    const uint64_t left = edge_count_ - at_;
    const uint64_t part = std::min(left, whole(pace_.next(left, edge_count_)));
    launch(part, learning_rate);
    const bool swept = at_ + part == edge_count_;
    if (swept) {
      common::check(
          cudaMemcpyAsync(result_.data(), sum_.data(), sizeof(double), cudaMemcpyDeviceToHost, device_.stream()),
          "reading the error");
      device_.clear(sum_.data(), 1);
    }
    device_.wait("visiting edges");
    pace_.done(part, std::chrono::steady_clock::now() - began);
    visited_ += part;
    at_ = swept ? 0 : at_ + part;
    if (swept) squared_error_ = *result_.data();
    return swept;
  }

  double squared_error() const override { return squared_error_; }
  uint64_t visited() const override { return visited_; }

  void read(Side side, uint64_t first, uint64_t count, float* factors) override {
    device_.download(of(side).data() + first * settings_.factors, count * settings_.factors, factors);
  }

  void write(Side side, const float* factors) override {
    device_.upload(factors, of(side).size(), of(side).data());
    device_.clear(sum_.data(), 1);
    device_.wait("copying the factors to the GPU");
    at_ = 0;
  }

  void release() override {
    edges_.release();
    for (auto* buffer : {&ratings_, &from_, &to_}) buffer->release();
    of_vertex_.release();
    sum_.release();
    result_.release();
    device_.close();
  }

 private:
  Buffer<float>& of(Side side) { return side == Side::kFrom ? from_ : to_; }

  unsigned blocks(uint64_t work) const {
    const uint64_t needed = (work + kThreads - 1) / kThreads;
    return static_cast<unsigned>(std::max<uint64_t>(1, std::min<uint64_t>(needed, device_.multiprocessors() * 8)));
  }

  void begin_any(uint64_t vertices, uint64_t edges, const Settings& settings) {
    if (!device_.is_open()) {
      device_.open(spin_);
      device_.load(count_edges<Made>, place_edges<Made>, count_edges<Given>, place_edges<Given>, reserve_places,
                   make_factors, visit<2>, visit<4>, visit<8>, visit<16>, visit<32>);
      result_.resize(1);
    }
    settings_ = settings;
    vertices_ = vertices;
    edge_count_ = edges;
    at_ = 0;
    edges_.resize(whole(edges));
    ratings_.resize(whole(edges));
    of_vertex_.resize(vertices + 1);
    sum_.resize(1);
    device_.clear(sum_.data(), 1);
    for (const auto side : {Side::kFrom, Side::kTo}) {
      of(side).resize(vertices * settings.factors);
      make_factors<<<blocks(of(side).size()), kThreads, 0, device_.stream()>>>(settings.seed, side, of(side).size(),
                                                                               settings.factors, of(side).data());
    }
    device_.wait("making the first factors");
  }

  static uint64_t whole(uint64_t edges) { return (edges + kAtOnce - 1) / kAtOnce * kAtOnce; }
  uint64_t block_edges() const { return (edge_count_ + kBlocks - 1) / kBlocks; }

  template <class Source>
  void order_block(const Source& source, uint64_t first, uint64_t count) {
    unsigned* const taken = of_vertex_.data() + vertices_;
    device_.clear(of_vertex_.data(), vertices_ + 1);
    count_edges<<<blocks(count), kThreads, 0, device_.stream()>>>(source, count, of_vertex_.data());
    reserve_places<<<blocks(vertices_), kThreads, 0, device_.stream()>>>(vertices_, of_vertex_.data(), taken);
    place_edges<<<blocks(count), kThreads, 0, device_.stream()>>>(source, count, of_vertex_.data(),
                                                                  edges_.data() + first, ratings_.data() + first);
  }

  void launch(uint64_t part, float rate) {
    switch (settings_.factors / 4) {
      case 2:
        return launch_with<2>(part, rate);
      case 4:
        return launch_with<4>(part, rate);
      case 8:
        return launch_with<8>(part, rate);
      case 16:
        return launch_with<16>(part, rate);
      default:
        return launch_with<32>(part, rate);
    }
  }

  template <unsigned kLanes>
  void launch_with(uint64_t part, float rate) {
    // Few enough in flight that most edges share no vertex with another one: in a small graph nearly every update would
    // be lost otherwise.
    const uint64_t room = std::max<uint64_t>(1, vertices_ / (kAtOnce * kVerticesPerEdge));
    const unsigned grid = blocks(std::min(part, room) * kLanes);
    const uint64_t groups = std::min<uint64_t>(room, uint64_t{grid} * kThreads / kLanes);
    visit<kLanes><<<grid, kThreads, 0, device_.stream()>>>(
        edges_.data() + at_, ratings_.data() + at_, part, groups, whole((part + groups - 1) / groups),
        reinterpret_cast<float4*>(from_.data()), reinterpret_cast<float4*>(to_.data()), settings_.mean, rate,
        settings_.regularisation, sum_.data());
  }

  common::Device device_;
  common::Pace pace_;
  bool spin_;
  Settings settings_;
  uint64_t vertices_ = 0;
  uint64_t edge_count_ = 0;
  uint64_t at_ = 0;
  double squared_error_ = 0;
  uint64_t visited_ = 0;
  common::PinnedBuffer<double> result_;
  Buffer<uint2> edges_;
  Buffer<float> ratings_;
  Buffer<float> from_;
  Buffer<float> to_;
  Buffer<double> sum_;
  Buffer<unsigned> of_vertex_;  // while edges are ordered
};

}  // namespace

std::unique_ptr<FactorBackend> make_cuda_backend(double step_ms, bool spin) {
  return std::make_unique<CudaBackend>(step_ms, spin);
}

}  // namespace sgd
