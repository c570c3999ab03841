// What is done to one pixel, for hosts and GPUs: the same operations in the same order, so the same bytes. Values are
// 0..255, colours premultiplied by their alpha.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define IMAGE_ANYWHERE __host__ __device__
#else
#define IMAGE_ANYWHERE
#endif

namespace image {

/// A colour as the filters weigh it: by its pixel's alpha, so that a transparent pixel's colour does not bleed.
IMAGE_ANYWHERE inline float premultiplied(uint8_t value, uint8_t alpha) {
  return static_cast<float>(value) * (static_cast<float>(alpha) / 255.0F);
}

/// White of this opacity over what is there; alpha is a channel like the others.
IMAGE_ANYWHERE inline float under_white(float value, float opacity) {
  return 255.0F * opacity + value * (1.0F - opacity);
}

IMAGE_ANYWHERE inline uint8_t to_byte(float value) {
  const float rounded = value + 0.5F;
  return static_cast<uint8_t>(rounded < 0.0F ? 0.0F : rounded > 255.0F ? 255.0F : rounded);
}

/// One result pixel's bytes from its values: `in` of 3 or 4 channels, `out` of as many or of 3, with white behind what
/// is transparent.
IMAGE_ANYWHERE inline void to_bytes(const float* in, unsigned channels, uint8_t* out, unsigned out_channels) {
  if (channels == 3) {
    for (unsigned c = 0; c < 3; ++c) out[c] = to_byte(in[c]);
    return;
  }
  const float alpha = in[3] / 255.0F;
  for (unsigned c = 0; c < 3; ++c) {
    const float over_white = in[c] + 255.0F * (1.0F - alpha);
    const float plain = alpha > 0 ? in[c] / alpha : 0.0F;
    out[c] = to_byte(out_channels == 3 ? over_white : plain);
  }
  if (out_channels == 4) out[3] = to_byte(in[3]);
}

/// A picture to measure with, any size, 3 channels: rings over a gradient, in whole numbers, so the same everywhere.
IMAGE_ANYWHERE inline void synthetic_pixel(uint32_t x, uint32_t y, uint32_t side, uint8_t* out) {
  const uint64_t dx = x > side / 2 ? x - side / 2 : side / 2 - x;
  const uint64_t dy = y > side / 2 ? y - side / 2 : side / 2 - y;
  const uint64_t ring = (dx * dx + dy * dy) * 1024 / (uint64_t{side} * side);
  out[0] = static_cast<uint8_t>(ring % 2 * 128 + uint64_t{x} * 127 / side);
  out[1] = static_cast<uint8_t>(uint64_t{y} * 255 / side);
  out[2] = static_cast<uint8_t>((x ^ y) & 0xffu);
}

}  // namespace image
