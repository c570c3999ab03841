// For the image plugin's test: whole pictures in memory, and a resize written from the definition, in double precision,
// without any code of the plugin.
#pragma once

#include <cstdio>
// jpeglib.h needs <cstdio> before it.
#include <jpeglib.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace image_test {

struct Picture {
  uint32_t width = 0;
  uint32_t height = 0;
  unsigned channels = 3;
  std::vector<uint8_t> bytes;
  uint8_t at(uint32_t x, uint32_t y, unsigned c) const { return bytes[(size_t{y} * width + x) * channels + c]; }
};

/// Soft shapes with some noise, so that a pixel off by one place shows.
inline Picture make_picture(uint32_t width, uint32_t height, unsigned channels, unsigned seed) {
  std::mt19937 random(seed);
  Picture picture{width, height, channels, {}};
  for (uint32_t y = 0; y < height; ++y) {
    for (uint32_t x = 0; x < width; ++x) {
      for (unsigned c = 0; c < channels; ++c) {
        const double wave = 100 + 80 * std::sin(0.11 * x * (c + 1)) * std::cos(0.07 * y + c) + random() % 40;
        const bool hole = c == 3 && (x / 5 + y / 7) % 3 == 0;  // fully transparent patches
        picture.bytes.push_back(hole ? 0 : static_cast<uint8_t>(wave));
      }
    }
  }
  return picture;
}

/// The part of source pixel `s` in output pixel `i`.
inline double weight(uint32_t s, uint32_t i, uint32_t source, uint32_t target, bool box) {
  const double scale = static_cast<double>(source) / target;
  if (box) return std::max(0.0, std::min((i + 1) * scale, s + 1.0) - std::max(i * scale, s + 0.0)) / scale;
  const double centre = std::min(std::max((i + 0.5) * scale - 0.5, 0.0), source - 1.0);
  return std::max(0.0, 1 - std::abs(centre - s));
}

inline Picture resize_reference(const Picture& in, uint32_t width, uint32_t height, bool box_x, bool box_y) {
  Picture out{width, height, in.channels, {}};
  for (uint32_t y = 0; y < height; ++y) {
    for (uint32_t x = 0; x < width; ++x) {
      double sum[4] = {};
      double alpha_sum = 0;
      for (uint32_t v = 0; v < in.height; ++v) {
        const double wy = weight(v, y, in.height, height, box_y);
        for (uint32_t u = 0; u < in.width && wy > 0; ++u) {
          const double w = wy * weight(u, x, in.width, width, box_x);
          const double alpha = in.channels == 4 ? in.at(u, v, 3) / 255.0 : 1.0;
          for (unsigned c = 0; c < 3 && w > 0; ++c) sum[c] += w * alpha * in.at(u, v, c);
          alpha_sum += w * alpha;
        }
      }
      for (unsigned c = 0; c < 3; ++c) {
        out.bytes.push_back(alpha_sum > 0 ? static_cast<uint8_t>(std::min(255.0, sum[c] / alpha_sum + 0.5)) : 0);
      }
      if (in.channels == 4) out.bytes.push_back(static_cast<uint8_t>(alpha_sum * 255 + 0.5));
    }
  }
  return out;
}

/// The greatest difference between two pictures of one size; 1000 when the sizes differ. A transparent pixel has no
/// colour to compare, and a nearly transparent one little.
inline double difference(const Picture& a, const Picture& b) {
  if (a.width != b.width || a.height != b.height || a.channels != b.channels) return 1000;
  double most = 0;
  for (size_t i = 0; i < a.bytes.size(); ++i) {
    const bool colour = a.channels == 4 && i % 4 != 3;
    const double visible = colour ? b.bytes[i / 4 * 4 + 3] / 255.0 : 1.0;
    most = std::max(most, visible * std::abs(a.bytes[i] - b.bytes[i]));
  }
  return most;
}

inline void write_png(const std::string& file, const Picture& picture, bool interlaced = false) {
  std::FILE* out = std::fopen(file.c_str(), "wb");
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, out);
  png_set_IHDR(
      png, info, picture.width, picture.height, 8, picture.channels == 4 ? PNG_COLOR_TYPE_RGBA : PNG_COLOR_TYPE_RGB,
      interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_bytep> rows;
  for (uint32_t y = 0; y < picture.height; ++y) {
    rows.push_back(const_cast<png_bytep>(picture.bytes.data()) + size_t{y} * picture.width * picture.channels);
  }
  png_set_rows(png, info, rows.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  std::fclose(out);
}

inline Picture read_png(const std::string& file) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_file(&image, file.c_str()) == 0) throw std::runtime_error(file + ": " + image.message);
  const bool alpha = (image.format & PNG_FORMAT_FLAG_ALPHA) != 0;
  image.format = alpha ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
  Picture picture{image.width, image.height, alpha ? 4U : 3U, std::vector<uint8_t>(PNG_IMAGE_SIZE(image))};
  if (png_image_finish_read(&image, nullptr, picture.bytes.data(), 0, nullptr) == 0) {
    throw std::runtime_error(file + ": " + image.message);
  }
  return picture;
}

enum class Kind { kBaseline, kProgressive, kGrey, kCmyk };

inline void write_jpeg(const std::string& file, const Picture& picture, Kind kind = Kind::kBaseline) {
  std::FILE* out = std::fopen(file.c_str(), "wb");
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  jpeg_stdio_dest(&jpeg, out);
  jpeg.image_width = picture.width;
  jpeg.image_height = picture.height;
  jpeg.input_components = kind == Kind::kCmyk ? 4 : kind == Kind::kGrey ? 1 : 3;
  jpeg.in_color_space = kind == Kind::kCmyk ? JCS_CMYK : kind == Kind::kGrey ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  if (kind == Kind::kProgressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<uint8_t> row;
  for (uint32_t y = 0; y < picture.height; ++y) {
    row.clear();
    for (uint32_t x = 0; x < picture.width; ++x) {
      for (int c = 0; c < jpeg.input_components; ++c) row.push_back(picture.at(x, y, std::min(c, 2)));
    }
    JSAMPROW rows[] = {row.data()};
    jpeg_write_scanlines(&jpeg, rows, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::fclose(out);
}

inline Picture read_jpeg(const std::string& file) {
  std::FILE* in = std::fopen(file.c_str(), "rb");
  if (in == nullptr) throw std::runtime_error("no " + file);
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_stdio_src(&jpeg, in);
  jpeg_read_header(&jpeg, TRUE);
  jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&jpeg);
  Picture picture{jpeg.output_width, jpeg.output_height, 3, {}};
  picture.bytes.resize(size_t{picture.width} * picture.height * 3);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW rows[] = {picture.bytes.data() + size_t{jpeg.output_scanline} * picture.width * 3};
    jpeg_read_scanlines(&jpeg, rows, 1);
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
  std::fclose(in);
  return picture;
}

}  // namespace image_test
