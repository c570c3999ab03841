// libpng reports errors by longjmp: guarded() is the only place that it lands in, and runs nothing that has a
// destructor.
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <vector>

#include "file.hpp"

namespace image {
namespace {

struct PngMessage {
  char text[128] = {};
};

void on_error(png_structp png, png_const_charp text) {
  auto* message = static_cast<PngMessage*>(png_get_error_ptr(png));
  std::strncpy(message->text, text, sizeof message->text - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp /*png*/, png_const_charp /*text*/) {}

/// Runs `body`; false when libpng failed in it. `body` captures references only and owns nothing.
template <class Body>
bool guarded(png_structp png, Body&& body) {
  static_assert(std::is_trivially_destructible_v<std::remove_reference_t<Body>>);
  if (setjmp(png_jmpbuf(png)) != 0) return false;  // NOLINT(cert-err52-cpp)
  body();
  return true;
}

/// A reading or writing png_struct and its png_info.
class PngHandle {
 public:
  PngHandle(bool writes, PngMessage* message) : writes_(writes) {
    png_ = writes ? png_create_write_struct(PNG_LIBPNG_VER_STRING, message, &on_error, &on_warning)
                  : png_create_read_struct(PNG_LIBPNG_VER_STRING, message, &on_error, &on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      destroy();
      throw std::bad_alloc();
    }
  }
  ~PngHandle() { destroy(); }
  PngHandle(const PngHandle&) = delete;
  PngHandle& operator=(const PngHandle&) = delete;
  png_structp png() const { return png_; }
  png_infop info() const { return info_; }

 private:
  void destroy() {
    if (writes_) {
      png_destroy_write_struct(&png_, &info_);
    } else {
      png_destroy_read_struct(&png_, &info_, nullptr);
    }
  }

  bool writes_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

class PngReader final : public Reader {
 public:
  PngReader(const std::string& path, uint64_t max_pixels) : file_(open_input(path)), handle_(false, &message_) {
    auto* png = handle_.png();
    auto* info = handle_.info();
    check(guarded(png, [this, png, info] {
      png_init_io(png, file_.get());
      png_read_info(png, info);
    }));
    check_size(png_get_image_width(png, info), png_get_image_height(png, info), max_pixels);
    check(guarded(png, [this, png, info] {
      png_set_expand(png);  // palettes, small grey, transparency by colour
      png_set_scale_16(png);
      png_set_gray_to_rgb(png);
      passes_ = png_set_interlace_handling(png);
      png_read_update_info(png, info);
    }));
    width_ = png_get_image_width(png, info);
    height_ = png_get_image_height(png, info);
    channels_ = png_get_channels(png, info);
    if (channels_ != 3 && channels_ != 4) throw Unusable("it does not decode to red, green and blue");
    if (passes_ > 1) whole_.resize(row_bytes() * height_);
  }

  // An interlaced picture is complete only after its last pass: the passes are the preparation, and rows come from
  // memory then.
  bool prepare() override {
    if (passes_ <= 1 || pass_ == passes_) return true;
    next_from_file(whole_.data() + row_bytes() * at_);
    if (++at_ == height_) {
      at_ = 0;
      ++pass_;
    }
    return pass_ == passes_;
  }

  void read_row(uint8_t* row) override {
    if (passes_ <= 1) return next_from_file(row);
    std::memcpy(row, whole_.data() + row_bytes() * at_++, row_bytes());
  }

 private:
  size_t row_bytes() const { return size_t{width_} * channels_; }

  void next_from_file(uint8_t* row) {
    auto* png = handle_.png();
    check(guarded(png, [png, row] { png_read_row(png, row, nullptr); }));
  }

  void check(bool ok) const {
    if (!ok) throw Unusable(message_.text);
  }

  File file_;
  PngMessage message_;
  PngHandle handle_;
  int passes_ = 1;
  int pass_ = 0;
  uint32_t at_ = 0;
  std::vector<uint8_t> whole_;
};

class PngWriter final : public Writer {
 public:
  PngWriter(const std::string& path, uint32_t width, uint32_t height, unsigned channels)
      : file_(path), handle_(true, &message_) {
    auto* png = handle_.png();
    auto* info = handle_.info();
    const int colour = channels == 4 ? PNG_COLOR_TYPE_RGBA : PNG_COLOR_TYPE_RGB;
    check(guarded(png, [this, png, info, width, height, colour] {
      png_init_io(png, file_.get());
      png_set_IHDR(png, info, width, height, 8, colour, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                   PNG_FILTER_TYPE_DEFAULT);
      png_set_compression_level(png, 3);  // a third of the default's time for some 5 % more bytes
      png_write_info(png, info);
    }));
  }

  void write_row(const uint8_t* row) override {
    auto* png = handle_.png();
    check(guarded(png, [png, row] { png_write_row(png, row); }));
  }

  void finish() override {
    auto* png = handle_.png();
    check(guarded(png, [png] { png_write_end(png, nullptr); }));
    file_.publish();
  }

 private:
  void check(bool ok) const {
    if (!ok) file_.fail(message_.text);
  }

  OutputFile file_;
  PngMessage message_;
  PngHandle handle_;
};

}  // namespace

std::unique_ptr<Reader> open_png(const std::string& path, uint64_t max_pixels) {
  return std::make_unique<PngReader>(path, max_pixels);
}

std::unique_ptr<Writer> create_png(const std::string& path, uint32_t width, uint32_t height, unsigned channels) {
  return std::make_unique<PngWriter>(path, width, height, channels);
}

}  // namespace image
