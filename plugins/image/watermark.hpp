// A line of text blended over a picture's lower right corner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace image {

/// The text's dots for a picture of one size: white, in a 5 x 7 dot font (capital letters, digits, '-', '.'; anything
/// else is a space), about a third of the picture's width, two dots from the edges; what does not fit is cut off at the
/// left and at the top.
class Watermark {
 public:
  Watermark(const std::string& text, double opacity, uint32_t width, uint32_t height);

  /// Blends row `y` of the picture in place: premultiplied values in 0..255, `channels` 3 or 4.
  void blend(uint32_t y, unsigned channels, std::vector<float>& row) const;

  /// The same for whoever blends elsewhere.
  struct Layout {
    int64_t left, top;          ///< of the text in the picture, pixels
    uint32_t dot;               ///< side of a dot, pixels
    uint32_t columns, rows;     ///< dots
    std::vector<uint8_t> dots;  ///< row by row; 1: blend
  };
  Layout layout() const;

 private:
  float opacity_;
  uint32_t dot_ = 1;  // side of a dot in pixels
  int64_t left_ = 0;  // of the text in the picture; negative: cut off
  int64_t top_ = 0;
  uint32_t width_;
  std::vector<std::vector<bool>> dots_;  // 7 rows
};

}  // namespace image
