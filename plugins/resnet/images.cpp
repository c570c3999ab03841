#include "images.hpp"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "../image/codec.hpp"
#include "../image/resize.hpp"

namespace training {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostPixels = 100'000'000;

std::vector<fs::path> sorted(const fs::path& folder, bool folders) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (folders ? it->is_directory(ignored) : it->is_regular_file(ignored)) found.push_back(it->path());
  }
  if (error) throw std::runtime_error("data=" + folder.string() + ": " + error.message());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<Sample> list_samples(const std::string& folder, int64_t classes) {
  std::vector<Sample> samples;
  int64_t label = 0;
  const auto folders = sorted(folder, true);
  if (folders.empty()) throw std::runtime_error("data=" + folder + ": it has no subfolder, one for each class");
  if (static_cast<int64_t>(folders.size()) > classes) {
    throw std::runtime_error("data=" + folder + ": it has " + std::to_string(folders.size()) +
                             " subfolders, so classes must be that many or more");
  }
  for (const auto& of_class : folders) {
    for (const auto& file : sorted(of_class, false)) {
      std::string end = file.extension().string();
      std::transform(end.begin(), end.end(), end.begin(), [](unsigned char c) { return std::tolower(c); });
      if (end == ".jpg" || end == ".jpeg" || end == ".png") samples.push_back({file.string(), label});
    }
    ++label;
  }
  if (samples.empty()) throw std::runtime_error("data=" + folder + ": no .jpg, .jpeg or .png file in its subfolders");
  return samples;
}

void read_picture(const std::string& file, uint32_t edge, float* out) {
  const auto reader = image::open_reader(file, kMostPixels);
  while (!reader->prepare()) {
  }
  const unsigned channels = reader->channels();
  image::Resizer resizer(reader->width(), reader->height(), channels, edge, edge, image::Filter::kAuto);
  std::vector<uint8_t> row(size_t{reader->width()} * channels);
  const size_t plane = size_t{edge} * edge;
  for (uint32_t y = 0; y < edge; ++y) {
    while (resizer.wants_row()) {
      reader->read_row(row.data());
      resizer.put(row.data());
    }
    const auto& line = resizer.get();
    for (uint32_t x = 0; x < edge; ++x) {
      for (unsigned c = 0; c < 3; ++c) out[c * plane + size_t{y} * edge + x] = line[size_t{x} * channels + c] / 255.0F;
    }
  }
}

}  // namespace training
