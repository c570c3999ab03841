// The checks on a GPU: every multiprocessor multiplies, sums and compares by itself; the host adds up once more.
#include <cuda_fp16.h>
#include <mma.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "canary/checks.hpp"
#include "common/device.cuh"

namespace canary {
namespace {

using common::Buffer;
using common::check;
using Word = unsigned long long;

constexpr unsigned kThreads = 256;
constexpr unsigned kTiles = 8;            // products of a block in a piece
constexpr unsigned kBlocksOfEach = 2;     // multiprocessor
constexpr uint64_t kLeastPartBytes = 32u << 20;
constexpr uint64_t kParts = 2;
constexpr double kLargest = 64.0 * kEdge;

/// What a piece has found, on the GPU.
struct Found {
  Word wrong, made, total, cycles, ns;
  Mismatch first[Report::kKept];
};

struct FlipAt {
  unsigned block, tile, element, bit;  // block: none that there is, for no flip
};

__device__ unsigned multiprocessor() {
  unsigned number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

__device__ Word nanoseconds() {
  Word now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ void note(Found* found, Mismatch::What what, uint64_t at, uint64_t wanted, uint64_t got) {
  const Word before = atomicAdd(&found->wrong, Word{1});
  if (before < Report::kKept) found->first[before] = {what, multiprocessor() + 1, at, wanted, got};
}

/// The sums of a block's product: made by its threads, compared with what they must be.
struct BlockSums {
  Word row[kEdge], column[kEdge];

  __device__ void clear() {
    if (threadIdx.x < kEdge) row[threadIdx.x] = column[threadIdx.x] = 0;
  }
  __device__ void add(Found* found, unsigned element, double value, uint64_t bits) {
    if (!(fabs(value) <= kLargest) || value != rint(value)) return note(found, Mismatch::kElement, element, 0, bits);
    const auto whole = static_cast<Word>(static_cast<long long>(value));
    atomicAdd(&row[element / kEdge], whole);
    atomicAdd(&column[element % kEdge], whole);
  }
  /// `wanted`: of the rows, then of the columns.
  __device__ void compare(Found* found, const int64_t* wanted) {
    const unsigned i = threadIdx.x % kEdge;
    if (threadIdx.x < kEdge) {
      atomicAdd(&found->total, row[i]);
      const auto must = static_cast<Word>(wanted[i]);
      if (row[i] != must) note(found, Mismatch::kRow, i, must, row[i]);
    } else if (threadIdx.x < 2 * kEdge) {
      const auto must = static_cast<Word>(wanted[kEdge + i]);
      if (column[i] != must) note(found, Mismatch::kColumn, i, must, column[i]);
    }
    if (threadIdx.x == 0) atomicAdd(&found->made, Word{1});
  }
};

__device__ int multiply_add(int a, int b, int c) { return a * b + c; }
__device__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

__device__ uint64_t bits_of(int value) { return static_cast<unsigned>(value); }
__device__ uint64_t bits_of(float value) { return __float_as_uint(value); }
__device__ uint64_t bits_of(double value) { return static_cast<uint64_t>(__double_as_longlong(value)); }
__device__ void flip_bit(int& value, unsigned bit) { value ^= static_cast<int>(1u << bit % 32); }
__device__ void flip_bit(float& value, unsigned bit) { value = __uint_as_float(__float_as_uint(value) ^ 1u << bit % 32); }
__device__ void flip_bit(double& value, unsigned bit) {
  value = __longlong_as_double(__double_as_longlong(value) ^ static_cast<long long>(Word{1} << bit % 64));
}

/// The factors of a seed, into a block's memory.
template <class T>
__device__ void make_factors(uint64_t seed, T (*a)[kEdge], T (*b)[kEdge]) {
  constexpr unsigned kSixteenths = kEdge / 16;
  for (unsigned i = threadIdx.x; i < 2 * kEdge * kSixteenths; i += blockDim.x) {
    const unsigned factor = i / (kEdge * kSixteenths), row = i / kSixteenths % kEdge, sixteenth = i % kSixteenths;
    const uint64_t elements = sixteen_of(seed, factor, row, sixteenth);
    T* into = (factor == 0 ? a : b)[row] + 16 * sixteenth;
    for (unsigned place = 0; place < 16; ++place) into[place] = static_cast<T>(element_of(elements, place));
  }
}

__device__ void note_clock(Found* found, long long cycles, Word ns) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  found->cycles = static_cast<Word>(clock64() - cycles);
  found->ns = nanoseconds() - ns;
}

// A block's threads are a square of 16 by 16, each with 4 by 4 elements of the product in its registers.
template <class T>
__global__ void multiply(uint64_t seed, const int64_t* wanted, FlipAt flip, Found* found) {
  __shared__ signed char a[kEdge][kEdge], b[kEdge][kEdge];
  __shared__ BlockSums sums;
  const long long cycles = clock64();
  const Word ns = nanoseconds();
  const unsigned row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  for (unsigned tile = 0; tile < kTiles; ++tile) {
    make_factors(seed + tile, a, b);
    sums.clear();
    __syncthreads();
    T product[4][4] = {};
    for (unsigned k = 0; k < kEdge; ++k) {
      T left[4], right[4];
      for (unsigned i = 0; i < 4; ++i) {
        left[i] = static_cast<T>(a[row + i][k]);
        right[i] = static_cast<T>(b[k][column + i]);
      }
      for (unsigned i = 0; i < 4; ++i) {
        for (unsigned j = 0; j < 4; ++j) product[i][j] = multiply_add(left[i], right[j], product[i][j]);
      }
    }
    for (unsigned i = 0; i < 4; ++i) {
      for (unsigned j = 0; j < 4; ++j) {
        const unsigned element = (row + i) * kEdge + column + j;
        if (blockIdx.x == flip.block && tile == flip.tile && element == flip.element)
          flip_bit(product[i][j], flip.bit);
        sums.add(found, element, static_cast<double>(product[i][j]), bits_of(product[i][j]));
      }
    }
    __syncthreads();
    sums.compare(found, wanted + 2 * kEdge * tile);
    __syncthreads();
  }
  note_clock(found, cycles, ns);
}

// The same by tensor cores: each of 8 warps makes two squares of 16 by 16.
__global__ void multiply_tensor(uint64_t seed, const int64_t* wanted, FlipAt flip, Found* found) {
  namespace wmma = nvcuda::wmma;
  __shared__ alignas(32) __half a[kEdge][kEdge], b[kEdge][kEdge];
  __shared__ alignas(32) float product[kEdge][kEdge];
  __shared__ BlockSums sums;
  const long long cycles = clock64();
  const Word ns = nanoseconds();
  for (unsigned tile = 0; tile < kTiles; ++tile) {
    make_factors(seed + tile, a, b);
    sums.clear();
    __syncthreads();
    for (unsigned square = threadIdx.x / common::kWarp; square < 16; square += kThreads / common::kWarp) {
      const unsigned row = square / 4 * 16, column = square % 4 * 16;
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
      wmma::fill_fragment(sum, 0.0f);
      for (unsigned k = 0; k < kEdge; k += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
        wmma::load_matrix_sync(left, &a[row][k], kEdge);
        wmma::load_matrix_sync(right, &b[k][column], kEdge);
        wmma::mma_sync(sum, left, right, sum);
      }
      wmma::store_matrix_sync(&product[row][column], sum, kEdge, wmma::mem_row_major);
    }
    __syncthreads();
    for (unsigned element = threadIdx.x; element < kEdge * kEdge; element += kThreads) {
      float value = product[element / kEdge][element % kEdge];
      if (blockIdx.x == flip.block && tile == flip.tile && element == flip.element) flip_bit(value, flip.bit);
      sums.add(found, element, value, bits_of(value));
    }
    __syncthreads();
    sums.compare(found, wanted + 2 * kEdge * tile);
    __syncthreads();
  }
  note_clock(found, cycles, ns);
}

__global__ void write_words(Word* memory, uint64_t words, uint64_t from, Pattern pattern, uint64_t seed) {
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += threads)
    memory[i] = word_of(pattern, seed, from + i);
}

__global__ void read_words(const Word* memory, uint64_t words, uint64_t from, Pattern pattern, uint64_t seed,
                           Found* found) {
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += threads) {
    const uint64_t wanted = word_of(pattern, seed, from + i), got = __ldcv(memory + i);  // not from the L1 cache
    if (got != wanted) note(found, Mismatch::kWord, from + i, wanted, got);
  }
}

__global__ void flip_word(Word* word, unsigned bit) {
  *word ^= Word{1} << bit % 64;
}

/// Two moments of a stream.
class Stopwatch {
 public:
  Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() { release(); }

  void open() {
    if (begin_ != nullptr) return;
    check(cudaEventCreate(&begin_), "making an event");
    check(cudaEventCreate(&end_), "making an event");
  }
  void release() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    begin_ = end_ = nullptr;
  }
  void begin(cudaStream_t stream) { check(cudaEventRecord(begin_, stream), "recording an event"); }
  void end(cudaStream_t stream) { check(cudaEventRecord(end_, stream), "recording an event"); }
  /// Once both are past.
  double ns() const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "reading the GPU's clock");
    return 1e6 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(bool spin) : spin_(spin) {}

  void open(uint64_t memory_bytes) override {
    device_.open(spin_);
    device_.load(multiply<int>, multiply<float>, multiply<double>, multiply_tensor, write_words, read_words, flip_word);
    int cache_bytes = 0;
    check(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, 0), "asking the GPU");
    // By itself larger than the cache: else what is read would be the cache's, not the memory's.
    const uint64_t enough = std::max<uint64_t>(kLeastPartBytes, static_cast<uint64_t>(cache_bytes) / 4 * 5);
    const uint64_t part_bytes = memory_bytes == 0 ? enough : std::max<uint64_t>(4096, memory_bytes / kParts);
    parts_ = kParts;
    part_words_ = part_bytes / sizeof(Word);
    memory_.clear();
    for (uint64_t part = 0; part < parts_; ++part) {
      memory_.push_back(std::make_unique<Buffer<Word>>());
      memory_.back()->resize(part_words_);
    }
    blocks_ = device_.multiprocessors() * kBlocksOfEach;
    operations_ = 2.0 * kEdge * kEdge * kEdge * kTiles * blocks_;
    wanted_.resize(size_t{2} * kEdge * kTiles);
    found_.resize(1);
    result_.resize(1);
    watch_.open();
    sums_.clear();
  }

  void release() override {
    watch_.release();
    memory_.clear();
    wanted_.release();
    found_.release();
    result_.release();
    device_.close();
  }

  bool has(Check) const override { return true; }

  Report product(Check kind, uint64_t seed, const std::optional<Flip>& flip) override {
    if (sums_.empty() || seed != seed_) prepare(seed);
    FlipAt at{blocks_, 0, 0, 0};
    if (flip) {
      constexpr uint64_t kElements = uint64_t{kEdge} * kEdge;
      at.element = static_cast<unsigned>(flip->at % kElements);
      at.tile = static_cast<unsigned>(flip->at / kElements % kTiles);
      at.block = static_cast<unsigned>(flip->at / kElements / kTiles % blocks_);
      at.bit = flip->bit;
    }
    begin();
    const auto launch = [&](auto* kernel) {
      kernel<<<blocks_, kThreads, 0, device_.stream()>>>(seed, wanted_.data(), at, found_.data());
    };
    switch (kind) {
      case Check::kFloat:
        launch(multiply<float>);
        break;
      case Check::kDouble:
        launch(multiply<double>);
        break;
      case Check::kTensor:
        launch(multiply_tensor);
        break;
      default:
        launch(multiply<int>);
    }
    Report report = end("multiplying");
    const Found& found = *result_.data();
    if (found.made != Word{blocks_} * kTiles)
      report.note({Mismatch::kMade, 0, 0, Word{blocks_} * kTiles, found.made});
    // By the host: whoever adds and compares on the GPU may be what is broken.
    if (report.wrong == 0 && found.total != total_ * blocks_)
      report.note({Mismatch::kTotal, 0, 0, total_ * blocks_, found.total});
    if (found.ns > 0) report.clock_mhz = 1e3 * static_cast<double>(found.cycles) / static_cast<double>(found.ns);
    return report;
  }

  Report write(uint64_t part, Pattern pattern, uint64_t seed) override {
    begin();
    write_words<<<memory_blocks(), kThreads, 0, device_.stream()>>>(memory_[part]->data(), part_words_,
                                                                    part * part_words_, pattern, seed);
    return end("writing memory");
  }

  Report read(uint64_t part, Pattern pattern, uint64_t seed) override {
    begin();
    read_words<<<memory_blocks(), kThreads, 0, device_.stream()>>>(memory_[part]->data(), part_words_,
                                                                   part * part_words_, pattern, seed, found_.data());
    return end("reading memory");
  }

  bool move(uint64_t part) override {
    auto other = std::make_unique<Buffer<Word>>();
    try {
      other->resize(part_words_);  // before the old one goes: else it would be the same
    } catch (const freeride::OutOfMemory&) {
      return false;
    }
    memory_[part].swap(other);
    return true;
  }

  void flip(uint64_t part, const Flip& flip) override {
    flip_word<<<1, 1, 0, device_.stream()>>>(memory_[part]->data() + flip.at % part_words_, flip.bit);
    device_.wait("flipping a bit");
  }

 private:
  unsigned memory_blocks() const { return device_.multiprocessors() * 8; }

  void prepare(uint64_t seed) {
    sums_.resize(kTiles);
    total_ = 0;
    for (unsigned tile = 0; tile < kTiles; ++tile) {
      sums_[tile] = expected_sums(seed + tile);
      for (const int64_t sum : sums_[tile].row) total_ += static_cast<Word>(sum);
    }
    seed_ = seed;
    static_assert(sizeof(Sums) == sizeof(int64_t) * 2 * kEdge);
    device_.upload(sums_.front().row.data(), wanted_.size(), wanted_.data());
  }

  void begin() {
    device_.clear(found_.data(), 1);
    watch_.begin(device_.stream());
  }

  Report end(const char* what) {
    check(cudaGetLastError(), what);
    watch_.end(device_.stream());
    check(cudaMemcpyAsync(result_.data(), found_.data(), sizeof(Found), cudaMemcpyDeviceToHost, device_.stream()),
          what);
    device_.wait(what);
    const Found& found = *result_.data();
    Report report;
    report.wrong = found.wrong;
    report.first.assign(found.first, found.first + std::min<Word>(found.wrong, Report::kKept));
    report.ns = watch_.ns();
    return report;
  }

  common::Device device_;
  bool spin_;
  unsigned blocks_ = 0;
  std::vector<std::unique_ptr<Buffer<Word>>> memory_;
  uint64_t seed_ = 0;
  std::vector<Sums> sums_;  // of the seed
  Word total_ = 0;          // of all rows of a block's products
  Buffer<int64_t> wanted_;
  Buffer<Found> found_;
  common::PinnedBuffer<Found> result_;
  Stopwatch watch_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(bool spin) {
  return std::make_unique<CudaBackend>(spin);
}

}  // namespace canary
