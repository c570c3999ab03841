// Resizing and watermarking one picture after another, on some kind of device. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/backend.hpp"
#include "resize.hpp"

namespace image {

struct Job {
  uint32_t width = 0;  ///< of the picture
  uint32_t height = 0;
  unsigned channels = 3;  ///< 3 or 4
  uint32_t out_width = 0;
  uint32_t out_height = 0;
  unsigned out_channels = 3;
  Filter filter = Filter::kAuto;
  std::string watermark;
  double opacity = 0;

  bool operator==(const Job& other) const {
    return width == other.width && height == other.height && channels == other.channels &&
           out_width == other.out_width && out_height == other.out_height && out_channels == other.out_channels &&
           filter == other.filter && watermark == other.watermark && opacity == other.opacity;
  }
};

/// After begin(): put() while wants_row(), else work() until it says true, then get(); and so on, until out_height rows
/// came out.
class Scaler {
 public:
  virtual ~Scaler() = default;
  /// In InitSideTask, once: makes what is needed on the device. `side`: also renders the synthetic picture of that many
  /// pixels a side there, if the device can keep one; 0: none.
  virtual void init(uint32_t /*side*/) {}
  /// The next picture. `synthetic`: it is the one that init() has rendered, if keeps_synthetic(): no rows are wanted
  /// then. Throws Unusable when it is too large for the device.
  virtual void begin(const Job& job, bool synthetic) = 0;
  virtual bool keeps_synthetic() const { return false; }
  virtual bool wants_row() const = 0;
  /// The next source row, 8 bits a channel.
  virtual void put(const uint8_t* row) = 0;
  /// One piece of the device's work, at most about step_ms, done on return; true when the next row is there.
  virtual bool work() { return true; }
  /// The next row of the result, out_width * out_channels bytes; valid until the next call.
  virtual const uint8_t* get() = 0;
  /// The picture is done or given up. Memory may be kept for the next one.
  virtual void end() {}
  virtual void release() {}
};

std::unique_ptr<Scaler> make_scaler(const common::Setup& setup);
std::unique_ptr<Scaler> make_cuda_scaler(double step_ms, bool spin);  ///< where there is CUDA

}  // namespace image
