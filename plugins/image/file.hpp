// The files behind the codecs: opened whole, closed always; an output file that appears under its name only when it is
// complete.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "codec.hpp"
#include "freeride/plugin.hpp"

namespace image {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

inline File open_input(const std::string& path) {
  File file(std::fopen(path.c_str(), "rbe"));
  if (!file) throw Unusable("cannot open it: " + std::string(std::strerror(errno)));
  return file;
}

class OutputFile {
 public:
  explicit OutputFile(const std::string& path)
      : path_(path), part_(path + ".part"), file_(std::fopen(part_.c_str(), "wbe")) {
    if (!file_) fail(std::strerror(errno));
  }
  ~OutputFile() {
    if (file_) std::remove(part_.c_str());
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::FILE* get() const { return file_.get(); }
  [[noreturn]] void fail(const std::string& why) const {
    throw freeride::TaskError("cannot write " + part_ + ": " + why);
  }

  /// The file is complete: flush, close, rename.
  void publish() {
    const bool bad = std::fflush(file_.get()) != 0 || std::ferror(file_.get()) != 0;
    if (bad || std::rename(part_.c_str(), path_.c_str()) != 0) fail(std::strerror(errno));
    file_.reset();
  }

 private:
  std::string path_;
  std::string part_;
  File file_;
};

/// Refuses what is empty or has more pixels than the user allows: dimensions come from outside and memory follows them.
inline void check_size(uint64_t width, uint64_t height, uint64_t max_pixels) {
  if (width == 0 || height == 0) throw Unusable("it has no pixels");
  if (width > max_pixels / height) {
    throw Unusable("it has " + std::to_string(width) + " x " + std::to_string(height) +
                   " pixels; raise max_megapixels to allow that");
  }
}

}  // namespace image
