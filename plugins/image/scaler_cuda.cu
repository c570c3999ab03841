// Resizing and watermarking on a GPU: a picture is copied there in pieces as it is decoded, resized in bands of rows,
// and its result copied back. Every value is computed as the CPU does it, in the same order: the bytes are the same.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "codec.hpp"
#include "common/device.cuh"
#include "pixel.hpp"
#include "scaler.hpp"
#include "watermark.hpp"

namespace image {
namespace {

using common::Buffer;

constexpr unsigned kThreads = 128;
constexpr size_t kUploadBytes = 4 << 20;     // of rows copied to the GPU at once: about 0.2 ms
constexpr unsigned kSharedBytes = 48 << 10;  // what every GPU gives a block

__global__ void render(uint32_t side, uint32_t first_row, uint32_t rows, uint8_t* out) {
  const uint64_t count = uint64_t{rows} * side;
  const uint64_t first = uint64_t{first_row} * side;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x)
    synthetic_pixel(static_cast<uint32_t>((first + i) % side), static_cast<uint32_t>((first + i) / side), side,
                    out + (first + i) * 3);
}

struct Geometry {
  const uint8_t* source;
  uint32_t width;
  const Axis::Taps* columns;
  const float* column_weights;
  const Axis::Taps* rows;
  const float* row_weights;
  uint32_t out_width;
  unsigned out_channels;
  uint8_t* out;
  // The watermark.
  const uint8_t* dots;
  int64_t left, top;
  uint32_t dot, dot_columns, dot_rows;
  float opacity;
};

/// One row of the result a block row, `columns_at_once` of its pixels a block. kStaged: source rows and weights go
/// through shared memory; without, for shapes that do not fit there, every value is read where it lies.
template <unsigned kChannels, bool kStaged>
__global__ void __launch_bounds__(kThreads)
    scale(Geometry g, uint32_t first_row, uint32_t columns_at_once, uint32_t most_taps) {
  extern __shared__ __align__(16) uint8_t shared[];
  const uint32_t y = first_row + blockIdx.y;
  const uint32_t x0 = blockIdx.x * columns_at_once;
  const uint32_t x1 = min(x0 + columns_at_once, g.out_width);
  const uint32_t x = x0 + threadIdx.x;
  const bool active = x < x1;
  const auto column = g.columns[active ? x : x0];
  const auto last = g.columns[x1 - 1];
  const uint64_t span_begin = uint64_t{g.columns[x0].first} * kChannels;
  const uint64_t span_end = uint64_t{last.first + last.count} * kChannels;
  auto* weights = reinterpret_cast<float*>(shared);  // [tap][thread]
  uint8_t* staged = shared + (size_t{most_taps} * columns_at_once * sizeof(float) + 15) / 16 * 16;
  if (kStaged && active) {
    for (uint32_t k = 0; k < column.count; ++k)
      weights[k * columns_at_once + threadIdx.x] = g.column_weights[column.weight + k];
  }
  const auto row_taps = g.rows[y];
  float value[kChannels] = {};
  for (uint32_t r = 0; r < row_taps.count; ++r) {
    const uint8_t* row = g.source + uint64_t{row_taps.first + r} * g.width * kChannels;
    const uint8_t* pixels = row + uint64_t{column.first} * kChannels;
    if (kStaged) {
      // In words of 16 bytes, from the one that holds the first byte on: the source is padded at its end.
      const auto address = reinterpret_cast<uint64_t>(row) + span_begin;
      const auto skew = static_cast<uint32_t>(address % 16);
      const auto* words = reinterpret_cast<const uint4*>(address - skew);
      const auto count = static_cast<uint32_t>((skew + (span_end - span_begin) + 15) / 16);
      __syncthreads();  // the row before has been used
      for (uint32_t i = threadIdx.x; i < count; i += kThreads) reinterpret_cast<uint4*>(staged)[i] = __ldcs(words + i);
      __syncthreads();
      pixels = staged + skew + (uint64_t{column.first} * kChannels - span_begin);
    }
    if (!active) continue;
    float line[kChannels] = {};
    for (uint32_t k = 0; k < column.count; ++k) {
      const float weight = kStaged ? weights[k * columns_at_once + threadIdx.x] : g.column_weights[column.weight + k];
      const uint8_t* pixel = pixels + k * kChannels;
      for (unsigned c = 0; c < kChannels; ++c) {
        const bool weighed = kChannels == 4 && c < 3;
        line[c] += weight * (weighed ? premultiplied(pixel[c], pixel[3]) : static_cast<float>(pixel[c]));
      }
    }
    const float weight = g.row_weights[row_taps.weight + r];
    for (unsigned c = 0; c < kChannels; ++c) value[c] += weight * line[c];
  }
  if (!active) return;
  const int64_t dot_y = int64_t{y} - g.top;
  const int64_t dot_x = int64_t{x} - g.left;
  if (dot_y >= 0 && dot_x >= 0 && dot_y < int64_t{g.dot} * g.dot_rows && dot_x < int64_t{g.dot} * g.dot_columns &&
      g.dots[dot_y / g.dot * g.dot_columns + dot_x / g.dot] != 0) {
    for (unsigned c = 0; c < kChannels; ++c) value[c] = under_white(value[c], g.opacity);
  }
  to_bytes(value, kChannels, g.out + (uint64_t{y} * g.out_width + x) * g.out_channels, g.out_channels);
}

class CudaScaler final : public Scaler {
 public:
  CudaScaler(double step_ms, bool spin) : pace_(step_ms), step_ms_(step_ms), spin_(spin) {}

  void init(uint32_t side) override {
    device_.open(spin_);
    device_.load(render, scale<3, true>, scale<3, false>, scale<4, true>, scale<4, false>);
    if (side == 0) {
      upload_.resize(kUploadBytes);
      return;
    }
    synthetic_.resize(size_t{side} * side * 3 + 16);
    // In bands, so that even here nobody waits long for the GPU.
    const uint32_t band = std::max(1u, side / 16);
    for (uint32_t row = 0; row < side; row += band) {
      render<<<device_.multiprocessors() * 8, kThreads, 0, device_.stream()>>>(side, row, std::min(band, side - row),
                                                                               synthetic_.data());
      device_.wait("rendering the synthetic picture");
    }
  }

  bool keeps_synthetic() const override { return synthetic_.size() > 0; }

  void begin(const Job& job, bool synthetic) override {
    synthetic_now_ = synthetic && keeps_synthetic();
    put_ = done_ = got_ = held_ = 0;
    if (job == job_) return;
    job_ = Job{};  // until all of this has worked
    const size_t source_bytes = size_t{job.width} * job.height * job.channels + 16;
    try {
      if (!synthetic_now_) source_.resize(source_bytes);
      out_.resize(size_t{job.out_width} * job.out_height * job.out_channels);
    } catch (const freeride::OutOfMemory& why) {
      source_.release();
      throw Unusable(why.what());
    }
    const Axis columns(job.width, job.out_width, job.filter);
    const Axis rows(job.height, job.out_height, job.filter);
    upload(columns.taps, columns_);
    upload(columns.weights, column_weights_);
    upload(rows.taps, rows_);
    upload(rows.weights, row_weights_);
    const auto mark = Watermark(job.watermark, job.opacity, job.out_width, job.out_height).layout();
    upload(mark.dots, dots_);
    device_.wait("preparing a picture");
    mark_left_ = mark.left;
    mark_top_ = mark.top;
    mark_dot_ = mark.dot;
    mark_columns_ = mark.columns;
    mark_rows_ = mark.rows;
    if (result_.size() < out_.size()) result_.resize(out_.size());
    choose_columns_at_once(columns, job);
    pace_ = common::Pace(step_ms_);  // rows of another shape take another time
    job_ = job;
  }

  bool wants_row() const override { return !synthetic_now_ && put_ < job_.height; }

  void put(const uint8_t* row) override {
    const size_t bytes = size_t{job_.width} * job_.channels;
    if (upload_.size() < bytes) upload_.resize(bytes);  // a row of more than kUploadBytes
    std::memcpy(upload_.data() + held_ * bytes, row, bytes);
    ++held_;
    ++put_;
    if (put_ < job_.height && (held_ + 1) * bytes <= upload_.size()) return;
    device_.upload(upload_.data(), held_ * bytes, source_.data() + (put_ - held_) * bytes);
    device_.wait("copying a picture to the GPU");
    held_ = 0;
  }

  bool work() override {
    if (done_ == job_.out_height) return true;
    const auto began = std::chrono::steady_clock::now();
    const auto part =
        static_cast<uint32_t>(std::min<uint64_t>(pace_.next(job_.out_height - done_, job_.out_height), 65535));
    launch(part);
    done_ += part;
    const bool whole = done_ == job_.out_height;
    if (whole) {
      device_.download(out_.data(), out_.size(), result_.data());
    } else {
      device_.wait("resizing a picture");
    }
    pace_.done(part, std::chrono::steady_clock::now() - began);
    return whole;
  }

  const uint8_t* get() override { return result_.data() + size_t{job_.out_width} * job_.out_channels * got_++; }

  void release() override {
    source_.release();
    synthetic_.release();
    out_.release();
    columns_.release();
    rows_.release();
    column_weights_.release();
    row_weights_.release();
    dots_.release();
    upload_.release();
    result_.release();
    job_ = Job{};
    device_.close();
  }

 private:
  template <class T>
  void upload(const std::vector<T>& from, Buffer<T>& to) {
    to.resize(std::max<size_t>(from.size(), 1));
    if (!from.empty()) device_.upload(from.data(), from.size(), to.data());
    device_.wait("preparing a picture");  // `from` may go now
  }

  // As many pixels of a row for a block as its shared memory has room for; 0: not even one.
  void choose_columns_at_once(const Axis& columns, const Job& job) {
    most_taps_ = 0;
    for (const auto& tap : columns.taps) most_taps_ = std::max(most_taps_, tap.count);
    for (columns_at_once_ = kThreads; columns_at_once_ > 0; columns_at_once_ /= 2) {
      uint64_t widest = 0;
      for (uint32_t x = 0; x < job.out_width; x += columns_at_once_) {
        const auto& last = columns.taps[std::min(x + columns_at_once_, job.out_width) - 1];
        widest = std::max<uint64_t>(widest, last.first + last.count - columns.taps[x].first);
      }
      const uint64_t bytes =
          (uint64_t{most_taps_} * columns_at_once_ * sizeof(float) + 15) / 16 * 16 + widest * job.channels + 32;
      shared_bytes_ = static_cast<unsigned>(std::min<uint64_t>(bytes, kSharedBytes + 1));
      if (shared_bytes_ <= kSharedBytes) return;
    }
  }

  void launch(uint32_t part) {
    const Geometry g{synthetic_now_ ? synthetic_.data() : source_.data(),
                     job_.width,
                     columns_.data(),
                     column_weights_.data(),
                     rows_.data(),
                     row_weights_.data(),
                     job_.out_width,
                     job_.out_channels,
                     out_.data(),
                     dots_.data(),
                     mark_left_,
                     mark_top_,
                     mark_dot_,
                     mark_columns_,
                     mark_rows_,
                     static_cast<float>(job_.opacity)};
    const bool staged = columns_at_once_ > 0;
    const uint32_t at_once = staged ? columns_at_once_ : kThreads;
    const dim3 grid((job_.out_width + at_once - 1) / at_once, part);
    const unsigned shared = staged ? shared_bytes_ : 0;
    const auto kernel = job_.channels == 3 ? (staged ? &scale<3, true> : &scale<3, false>)
                                           : (staged ? &scale<4, true> : &scale<4, false>);
    kernel<<<grid, kThreads, shared, device_.stream()>>>(g, done_, at_once, most_taps_);
  }

  common::Device device_;
  common::Pace pace_;
  double step_ms_;
  bool spin_;
  Job job_;
  bool synthetic_now_ = false;
  uint32_t put_ = 0;   // source rows taken
  size_t held_ = 0;    // of them, not yet on the GPU
  uint32_t done_ = 0;  // result rows computed
  uint32_t got_ = 0;   // and given out
  common::PinnedBuffer<uint8_t> upload_;
  common::PinnedBuffer<uint8_t> result_;
  unsigned columns_at_once_ = 0, most_taps_ = 0, shared_bytes_ = 0;
  int64_t mark_left_ = 0, mark_top_ = 0;
  uint32_t mark_dot_ = 1, mark_columns_ = 0, mark_rows_ = 0;
  Buffer<uint8_t> source_, synthetic_, out_, dots_;
  Buffer<Axis::Taps> columns_, rows_;
  Buffer<float> column_weights_, row_weights_;
};

}  // namespace

std::unique_ptr<Scaler> make_cuda_scaler(double step_ms, bool spin) {
  return std::make_unique<CudaScaler>(step_ms, spin);
}

}  // namespace image
