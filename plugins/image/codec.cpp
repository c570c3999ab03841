#include "codec.hpp"

#include "file.hpp"

namespace image {

Format format_of(const std::string& path) {
  const auto file = open_input(path);
  unsigned char magic[8] = {};
  const size_t got = std::fread(magic, 1, sizeof magic, file.get());
  if (got >= 3 && std::memcmp(magic, "\xff\xd8\xff", 3) == 0) return Format::kJpeg;
  if (got == 8 && std::memcmp(magic, "\x89PNG\r\n\x1a\n", 8) == 0) return Format::kPng;
  throw Unusable("it is neither a JPEG nor a PNG");
}

std::unique_ptr<Reader> open_reader(const std::string& path, uint64_t max_pixels) {
  return format_of(path) == Format::kJpeg ? open_jpeg(path, max_pixels) : open_png(path, max_pixels);
}

std::unique_ptr<Writer> create_writer(const std::string& path, Format format, uint32_t width, uint32_t height,
                                      unsigned channels, int quality) {
  return format == Format::kJpeg ? create_jpeg(path, width, height, quality)
                                 : create_png(path, width, height, channels);
}

}  // namespace image
