// What the fuzz targets share: what must hold, and a folder in memory, since most inputs end before a disk would
// answer.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace freeride::fuzz {

class TempFolder {
 public:
  TempFolder() : path_("/dev/shm/freeride-fuzz-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) abort();
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

/// What must hold whatever the input; a fuzzer stops at it as at a memory error.
inline void must(bool holds) {
  if (!holds) abort();
}

}  // namespace freeride::fuzz
