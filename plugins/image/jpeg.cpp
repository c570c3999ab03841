// libjpeg reports errors by longjmp: guarded() is the only place that it lands in, and runs nothing that has a
// destructor.
#include <csetjmp>
#include <cstdio>
// jpeglib.h needs <cstdio> before it.
#include <jpeglib.h>

#include <jerror.h>

#include "file.hpp"

namespace image {
namespace {

// A progressive picture may hold a scan for every bit of every coefficient; more is an attack on our time.
constexpr int kMaxScans = 200;

struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg hands out a pointer to it
  jmp_buf landing;
  char message[JMSG_LENGTH_MAX];
};

void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->message);
  longjmp(errors->landing, 1);  // NOLINT(cert-err52-cpp): libjpeg leaves no other way
}

// Warnings are for oddities in old files, except that the data ends too early: half a picture is not a picture.
void on_message(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) on_error(info);
}

void on_output(j_common_ptr /*info*/) {}

jpeg_error_mgr* install(JpegErrors& errors) {
  jpeg_std_error(&errors.base);
  errors.base.error_exit = &on_error;
  errors.base.emit_message = &on_message;
  errors.base.output_message = &on_output;
  errors.message[0] = '\0';
  return &errors.base;
}

/// Runs `body`; false when libjpeg failed in it. `body` captures references only and owns nothing.
template <class Body>
bool guarded(JpegErrors& errors, Body&& body) {
  static_assert(std::is_trivially_destructible_v<std::remove_reference_t<Body>>);
  if (setjmp(errors.landing) != 0) return false;  // NOLINT(cert-err52-cpp)
  body();
  return true;
}

class JpegReader final : public Reader {
 public:
  JpegReader(const std::string& path, uint64_t max_pixels) : file_(open_input(path)) {
    jpeg_.err = install(errors_);
    // A half-made decoder is freed like a whole one, but a constructor that throws runs no destructor.
    try {
      check(guarded(errors_, [this] {
        jpeg_create_decompress(&jpeg_);
        jpeg_stdio_src(&jpeg_, file_.get());
        jpeg_read_header(&jpeg_, TRUE);
      }));
      check_size(jpeg_.image_width, jpeg_.image_height, max_pixels);
      if (jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK)
        throw Unusable("CMYK is not supported");
      check(guarded(errors_, [this] {
        jpeg_.out_color_space = JCS_RGB;
        jpeg_.buffered_image = jpeg_has_multiple_scans(&jpeg_);
        jpeg_start_decompress(&jpeg_);
      }));
      if (jpeg_.output_components != 3) throw Unusable("it does not decode to red, green and blue");
    } catch (...) {
      jpeg_destroy_decompress(&jpeg_);
      throw;
    }
    width_ = jpeg_.output_width;
    height_ = jpeg_.output_height;
  }

  ~JpegReader() override { jpeg_destroy_decompress(&jpeg_); }

  bool prepare() override {
    if (jpeg_.buffered_image == FALSE || started_) return true;
    int state = 0;
    check(guarded(errors_, [this, &state] {
      state = jpeg_consume_input(&jpeg_);
      if (state == JPEG_REACHED_EOI) jpeg_start_output(&jpeg_, jpeg_.input_scan_number);
    }));
    if (jpeg_.input_scan_number > kMaxScans) throw Unusable("it has more than " + std::to_string(kMaxScans) + " scans");
    started_ = state == JPEG_REACHED_EOI;
    return started_;
  }

  void read_row(uint8_t* row) override {
    JSAMPROW rows[] = {row};
    JDIMENSION read = 0;
    check(guarded(errors_, [this, &rows, &read] { read = jpeg_read_scanlines(&jpeg_, rows, 1); }));
    if (read != 1) throw Unusable("it has fewer rows than it says");
  }

 private:
  void check(bool ok) const {
    if (!ok) throw Unusable(errors_.message);
  }

  File file_;
  JpegErrors errors_{};
  jpeg_decompress_struct jpeg_{};
  bool started_ = false;
};

class JpegWriter final : public Writer {
 public:
  JpegWriter(const std::string& path, uint32_t width, uint32_t height, int quality) : file_(path) {
    jpeg_.err = install(errors_);
    const bool ok = guarded(errors_, [this, width, height, quality] {
      jpeg_create_compress(&jpeg_);
      jpeg_stdio_dest(&jpeg_, file_.get());
      jpeg_.image_width = width;
      jpeg_.image_height = height;
      jpeg_.input_components = 3;
      jpeg_.in_color_space = JCS_RGB;
      jpeg_set_defaults(&jpeg_);
      jpeg_set_quality(&jpeg_, quality, TRUE);
      jpeg_start_compress(&jpeg_, TRUE);
    });
    if (!ok) {
      jpeg_destroy_compress(&jpeg_);
      file_.fail(errors_.message);
    }
  }

  ~JpegWriter() override { jpeg_destroy_compress(&jpeg_); }

  void write_row(const uint8_t* row) override {
    JSAMPROW rows[] = {const_cast<JSAMPROW>(row)};  // libjpeg takes no const, and writes nothing
    check(guarded(errors_, [this, &rows] { jpeg_write_scanlines(&jpeg_, rows, 1); }));
  }

  void finish() override {
    check(guarded(errors_, [this] { jpeg_finish_compress(&jpeg_); }));
    file_.publish();
  }

 private:
  void check(bool ok) const {
    if (!ok) file_.fail(errors_.message);
  }

  OutputFile file_;
  JpegErrors errors_{};
  jpeg_compress_struct jpeg_{};
};

}  // namespace

std::unique_ptr<Reader> open_jpeg(const std::string& path, uint64_t max_pixels) {
  return std::make_unique<JpegReader>(path, max_pixels);
}

std::unique_ptr<Writer> create_jpeg(const std::string& path, uint32_t width, uint32_t height, int quality) {
  return std::make_unique<JpegWriter>(path, width, height, quality);
}

}  // namespace image
