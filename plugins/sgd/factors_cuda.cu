// Matrix factorisation on a GPU: many edges at once, without locks (Hogwild, Recht et al., NIPS 2011). Where two edges
// in flight share a vertex one update may be lost; that costs progress, never stability.
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

constexpr unsigned kVerticesPerEdge = 8;  // at least so many for each edge in flight

__device__ uint64_t thread_number() {
  return blockIdx.x * uint64_t{kThreads} + threadIdx.x;
}
__device__ uint64_t thread_count() {
  return gridDim.x * uint64_t{kThreads};
}

__global__ void make_edges(Rmat rmat, uint64_t rating_seed, uint2* edges, float* ratings) {
  for (uint64_t i = thread_number(); i < rmat.edges(); i += thread_count()) {
    const Edge edge = rmat.edge(i);
    edges[i] = make_uint2(edge.from, edge.to);
    ratings[i] = graph::planted_rating(rating_seed, edge);
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

/// Visits `count` edges; kLanes threads share one, four factors each, and the first `groups` of them work.
template <unsigned kLanes>
__global__ void __launch_bounds__(kThreads)
    visit(const uint2* __restrict__ edges, const float* __restrict__ ratings, uint64_t count, uint64_t groups,
          float4* p, float4* q, float mean, float rate, float regularisation, double* squared_error) {
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned group_mask = (kLanes == 32 ? 0xffffffffu : (1u << kLanes % 32) - 1)
                              << (threadIdx.x % 32 / kLanes * kLanes);
  const uint64_t group = thread_number() / kLanes;
  double sum = 0;
  for (uint64_t first = group < groups ? group : count; first < count; first += groups * kAtOnce) {
    uint64_t from[kAtOnce], to[kAtOnce];
    float rating[kAtOnce];
    float4 a[kAtOnce], b[kAtOnce];
    unsigned there = 0;
#pragma unroll
    for (unsigned j = 0; j < kAtOnce; ++j) {
      const uint64_t i = first + j * groups;
      if (i >= count) continue;
      const uint2 edge = __ldcs(edges + i);
      rating[j] = __ldcs(ratings + i);
      from[j] = uint64_t{edge.x} * kLanes + lane;
      to[j] = uint64_t{edge.y} * kLanes + lane;
      there = j + 1;
    }
    // Past the first-level caches, which would keep values that other multiprocessors have changed.
#pragma unroll
    for (unsigned j = 0; j < kAtOnce; ++j) {
      if (j >= there) continue;
      a[j] = __ldcg(p + from[j]);
      b[j] = __ldcg(q + to[j]);
    }
#pragma unroll
    for (unsigned j = 0; j < kAtOnce; ++j) {
      if (j >= there) continue;
      float product = dot(a[j], b[j]);
#pragma unroll
      for (unsigned d = kLanes / 2; d > 0; d /= 2) product += __shfl_xor_sync(group_mask, product, d);
      const float error = rating[j] - mean - product;
      if (lane == 0) sum += double{error} * error;
      __stcg(p + from[j], moved(a[j], b[j], error, rate, regularisation));
      __stcg(q + to[j], moved(b[j], a[j], error, rate, regularisation));
    }
  }
  sum = common::block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(squared_error, sum);
}

class CudaBackend final : public FactorBackend {
 public:
  CudaBackend(double step_ms, bool spin) : pace_(step_ms), spin_(spin) {}

  void begin(const Ratings& ratings, const Settings& settings) override {
    begin_any(ratings.vertices, ratings.edges.size(), settings);
    static_assert(sizeof(Edge) == sizeof(uint2));
    device_.upload(reinterpret_cast<const uint2*>(ratings.edges.data()), edge_count_, edges_.data());
    device_.upload(ratings.ratings.data(), edge_count_, ratings_.data());
    device_.wait("copying the ratings to the GPU");
  }

  bool begin(const Rmat& rmat, uint64_t rating_seed, const Settings& settings) override {
    begin_any(rmat.vertices(), rmat.edges(), settings);
    make_edges<<<blocks(edge_count_), kThreads, 0, device_.stream()>>>(rmat, rating_seed, edges_.data(),
                                                                       ratings_.data());
    device_.wait("making the graph");
    return true;
  }

  bool advance(float learning_rate) override {
    const auto began = std::chrono::steady_clock::now();
    const uint64_t part = pace_.next(edge_count_ - at_, edge_count_);
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
      device_.load(make_edges, make_factors, visit<2>, visit<4>, visit<8>, visit<16>, visit<32>);
      result_.resize(1);
    }
    settings_ = settings;
    vertices_ = vertices;
    edge_count_ = edges;
    at_ = 0;
    edges_.resize(edges);
    ratings_.resize(edges);
    sum_.resize(1);
    device_.clear(sum_.data(), 1);
    for (const auto side : {Side::kFrom, Side::kTo}) {
      of(side).resize(vertices * settings.factors);
      make_factors<<<blocks(of(side).size()), kThreads, 0, device_.stream()>>>(settings.seed, side, of(side).size(),
                                                                               settings.factors, of(side).data());
    }
    device_.wait("making the first factors");
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
        edges_.data() + at_, ratings_.data() + at_, part, groups, reinterpret_cast<float4*>(from_.data()),
        reinterpret_cast<float4*>(to_.data()), settings_.mean, rate, settings_.regularisation, sum_.data());
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
};

}  // namespace

std::unique_ptr<FactorBackend> make_cuda_backend(double step_ms, bool spin) {
  return std::make_unique<CudaBackend>(step_ms, spin);
}

}  // namespace sgd
