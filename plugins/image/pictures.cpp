#include "pictures.hpp"

#include <cmath>

#include "pixel.hpp"

namespace image {
namespace {

constexpr int kMaxIterations = 64;

int mandelbrot(double x0, double y0) {
  double x = 0;
  double y = 0;
  int n = 0;
  for (; n < kMaxIterations && x * x + y * y < 4; ++n) {
    const double next = x * x - y * y + x0;
    y = 2 * x * y + y0;
    x = next;
  }
  return n;
}

void pixel(unsigned number, double u, double v, uint8_t* out) {  // u, v in 0..1
  const bool second = number % 2 == 1;
  if (number < 2) {
    // The whole set; and a stretch of its seahorse valley.
    const int n = second ? mandelbrot(-0.78 + 0.09 * u, 0.08 + 0.0675 * v) : mandelbrot(-2.2 + 3.2 * u, -1.2 + 2.4 * v);
    out[0] = static_cast<uint8_t>(n * 4 % 256);
    out[1] = static_cast<uint8_t>(n * 7 % 256);
    out[2] = static_cast<uint8_t>(n * 13 % 256);
  } else if (number < 4) {
    const double x = u - 0.5, y = v - (second ? 0.2 : 0.5);
    const double r = std::sqrt(x * x + y * y);  // std::hypot is one of glibc 2.35's
    for (int c = 0; c < 3; ++c)
      out[c] = static_cast<uint8_t>(127.5 + 127.5 * std::sin(r * (second ? 90 : 40) + 2.1 * c));
  } else {
    out[0] = static_cast<uint8_t>(255 * u);
    out[1] = static_cast<uint8_t>(255 * v);
    out[2] = static_cast<uint8_t>(255 * (second ? u * v : 1 - u));
  }
}

class SyntheticReader final : public Reader {
 public:
  explicit SyntheticReader(uint32_t side) { width_ = height_ = side; }
  bool prepare() override { return true; }
  void read_row(uint8_t* row) override {
    for (uint32_t x = 0; x < width_; ++x) synthetic_pixel(x, row_number_, width_, row + size_t{x} * 3);
    ++row_number_;
  }

 private:
  uint32_t row_number_ = 0;
};

}  // namespace

std::unique_ptr<Reader> open_synthetic(uint32_t side) {
  return std::make_unique<SyntheticReader>(side);
}

Picture picture(unsigned number) {
  static constexpr const char* kNames[kPictures] = {"mandelbrot-1.jpg", "mandelbrot-2.jpg", "rings-1.jpg",
                                                    "rings-2.jpg",      "gradient-1.png",   "gradient-2.png"};
  return {kNames[number], number < 4 ? Format::kJpeg : Format::kPng};
}

void picture_row(unsigned number, uint32_t y, uint8_t* row) {
  for (uint32_t x = 0; x < kPictureWidth; ++x) {
    pixel(number, (x + 0.5) / kPictureWidth, (y + 0.5) / kPictureHeight, row + size_t{x} * 3);
  }
}

}  // namespace image
