// Pictures to work on where the user has given none: the same ones on every machine, up to its rounding.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "codec.hpp"

namespace image {

constexpr unsigned kPictures = 6;
constexpr uint32_t kPictureWidth = 1600;
constexpr uint32_t kPictureHeight = 1200;

struct Picture {
  std::string name;
  Format format;
};

/// Number 0..kPictures-1: two Mandelbrot sets and two ring patterns as JPEG, two colour gradients as PNG.
Picture picture(unsigned number);
/// Row `y` of picture `number`, kPictureWidth * 3 bytes.
void picture_row(unsigned number, uint32_t y, uint8_t* row);

/// The picture to measure with, `side` pixels each way, a row at a time.
std::unique_ptr<Reader> open_synthetic(uint32_t side);

}  // namespace image
