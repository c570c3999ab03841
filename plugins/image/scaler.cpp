#include "scaler.hpp"

#include <optional>
#include <vector>

#include "pixel.hpp"
#include "watermark.hpp"

namespace image {
namespace {

/// Rows stream through: only what lies between is kept.
class CpuScaler final : public Scaler {
 public:
  void begin(const Job& job, bool /*synthetic*/) override {
    job_ = job;
    resizer_.emplace(job.width, job.height, job.channels, job.out_width, job.out_height, job.filter);
    mark_.emplace(job.watermark, job.opacity, job.out_width, job.out_height);
    row_.resize(size_t{job.out_width} * job.out_channels);
    rows_ = 0;
  }
  bool wants_row() const override { return resizer_->wants_row(); }
  void put(const uint8_t* row) override { resizer_->put(row); }
  const uint8_t* get() override {
    auto& line = resizer_->get();
    mark_->blend(rows_++, job_.channels, line);
    for (size_t x = 0; x < job_.out_width; ++x)
      to_bytes(line.data() + x * job_.channels, job_.channels, row_.data() + x * job_.out_channels, job_.out_channels);
    return row_.data();
  }
  void end() override {
    resizer_.reset();
    mark_.reset();
  }

 private:
  Job job_;
  std::optional<Resizer> resizer_;
  std::optional<Watermark> mark_;
  std::vector<uint8_t> row_;
  uint32_t rows_ = 0;
};

}  // namespace

std::unique_ptr<Scaler> make_scaler(const common::Setup& setup) {
  if constexpr (common::kHasCuda) {
    if (setup.backend == common::Backend::kCuda) return make_cuda_scaler(setup.step_ms, setup.spin);
  }
  return std::make_unique<CpuScaler>();
}

}  // namespace image
