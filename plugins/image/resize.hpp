// Resizing a picture row by row: rows go in from the top, rows come out from the top, only the rows in between are
// kept.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace image {

/// kBox: the mean over the source area that an output pixel covers. kBilinear: between the four nearest source pixels'
/// centres. kAuto: box where an axis shrinks, bilinear where it grows.
enum class Filter { kAuto, kBox, kBilinear };

/// One axis of a resize: which source pixels an output pixel is made of, and how much of each; weights of one sum to 1.
struct Axis {
  Axis(uint32_t source, uint32_t target, Filter filter);

  struct Taps {
    uint32_t first;  // source pixel
    uint32_t count;
    uint32_t weight;  // index of the first one's weight
  };
  std::vector<Taps> taps;  // one for each output pixel; first and first + count never fall
  std::vector<float> weights;
};

/// Resizes one picture. Colours are weighted by their alpha, so a transparent pixel's colour does not bleed.
class Resizer {
 public:
  Resizer(uint32_t source_width, uint32_t source_height, unsigned channels, uint32_t width, uint32_t height,
          Filter filter);

  /// Whether the next output row needs further source rows: call put(). Else call get().
  bool wants_row() const { return put_ < end_of(got_); }
  /// The next source row, 8 bits a channel.
  void put(const uint8_t* row);
  /// The next output row: width * channels values in 0..255, premultiplied by alpha. Valid until the next call; the
  /// caller may change it.
  std::vector<float>& get();
  bool done() const { return got_ == rows_.taps.size(); }

 private:
  uint32_t end_of(uint32_t row) const { return rows_.taps[row].first + rows_.taps[row].count; }

  unsigned channels_;
  Axis columns_;
  Axis rows_;
  uint32_t put_ = 0;  // source rows taken
  uint32_t got_ = 0;  // output rows made
  std::deque<std::vector<float>>
      kept_;  // source rows put_ - size .. put_ - 1, resized along x; empty where nobody needs them
  std::vector<std::vector<float>> spare_;
  std::vector<float> premultiplied_;
  std::vector<float> out_;
};

}  // namespace image
