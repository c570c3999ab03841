// Pictures a row at a time, JPEG and PNG: what can be long comes in pieces, so that a side task's step stays short.
// Rows are 8 bits a channel, red, green, blue and, with 4 channels, alpha (not premultiplied). One thread; all may
// block on the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace image {

/// This picture cannot be used (damaged, unsupported, too large): skip it, the next one may be fine.
class Unusable : public std::runtime_error {
 public:
  explicit Unusable(const std::string& what) : std::runtime_error(what) {}
};

enum class Format { kJpeg, kPng };

/// Reads one picture from the top.
class Reader {
 public:
  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  virtual ~Reader() = default;
  uint32_t width() const { return width_; }
  uint32_t height() const { return height_; }
  unsigned channels() const { return channels_; }  ///< 3 or 4
  /// A piece of the work that must be done before the first row (progressive and interlaced pictures have much); true
  /// when it is done.
  virtual bool prepare() = 0;
  /// The next row into `row`, width * channels bytes. Call height() times. Throws Unusable.
  virtual void read_row(uint8_t* row) = 0;

 protected:
  uint32_t width_ = 0;
  uint32_t height_ = 0;
  unsigned channels_ = 3;
};

/// Opens the picture `path`, JPEG or PNG by its content, of at most `max_pixels`. Throws Unusable.
std::unique_ptr<Reader> open_reader(const std::string& path, uint64_t max_pixels);
Format format_of(const std::string& path);  ///< by its content; throws Unusable

/// Writes one picture from the top into `path` + ".part"; finish() gives it its name. Destroyed before that, it leaves
/// nothing.
class Writer {
 public:
  Writer() = default;
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  virtual ~Writer() = default;
  virtual void write_row(const uint8_t* row) = 0;
  virtual void finish() = 0;
};

/// JPEG takes 3 channels, PNG 3 or 4. `quality` (1..100) is JPEG's. Throws freeride::TaskError when the file cannot be
/// written, here and from the writer's functions: the disk that is full for one picture is full for all.
std::unique_ptr<Writer> create_writer(const std::string& path, Format format, uint32_t width, uint32_t height,
                                      unsigned channels, int quality);

constexpr uint32_t kMaxJpegSide = 65500;

// ---- for the codecs' own files ----

std::unique_ptr<Reader> open_jpeg(const std::string& path, uint64_t max_pixels);
std::unique_ptr<Reader> open_png(const std::string& path, uint64_t max_pixels);
std::unique_ptr<Writer> create_jpeg(const std::string& path, uint32_t width, uint32_t height, int quality);
std::unique_ptr<Writer> create_png(const std::string& path, uint32_t width, uint32_t height, unsigned channels);

}  // namespace image
