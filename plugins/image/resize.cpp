#include "resize.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "pixel.hpp"

namespace image {

Axis::Axis(uint32_t source, uint32_t target, Filter filter) {
  const bool box = filter == Filter::kBox || (filter == Filter::kAuto && target <= source);
  const double scale = static_cast<double>(source) / target;
  taps.reserve(target);
  for (uint32_t i = 0; i < target; ++i) {
    const auto at = static_cast<uint32_t>(weights.size());
    if (box) {
      const double begin = i * scale;
      const double end = std::min<double>((i + 1) * scale, source);
      const auto first = std::min(static_cast<uint32_t>(begin), source - 1);
      auto last = std::min(static_cast<uint32_t>(std::ceil(end)), source);
      last = std::max(last, first + 1);
      for (uint32_t s = first; s < last; ++s) {
        const double covered = std::min<double>(end, s + 1.0) - std::max<double>(begin, s);
        weights.push_back(static_cast<float>(std::max(covered, 0.0) / (end - begin)));
      }
      taps.push_back({first, last - first, at});
    } else {
      const double centre = std::clamp((i + 0.5) * scale - 0.5, 0.0, source - 1.0);
      const auto first = static_cast<uint32_t>(centre);
      const auto share = static_cast<float>(centre - first);
      const bool alone = first + 1 >= source;
      weights.push_back(alone ? 1.0F : 1.0F - share);
      if (!alone) weights.push_back(share);
      taps.push_back({first, alone ? 1U : 2U, at});
    }
  }
}

Resizer::Resizer(uint32_t source_width, uint32_t source_height, unsigned channels, uint32_t width, uint32_t height,
                 Filter filter)
    : channels_(channels),
      columns_(source_width, width, filter),
      rows_(source_height, height, filter),
      premultiplied_(size_t{source_width} * channels),
      out_(size_t{width} * channels) {}

void Resizer::put(const uint8_t* row) {
  const uint32_t index = put_++;
  // A bilinear filter that shrinks passes over whole rows.
  if (index < rows_.taps[got_].first) return;
  const size_t values = premultiplied_.size();
  if (channels_ == 4) {
    for (size_t i = 0; i < values; i += 4) {
      for (size_t c = 0; c < 3; ++c) premultiplied_[i + c] = premultiplied(row[i + c], row[i + 3]);
      premultiplied_[i + 3] = row[i + 3];
    }
  } else {
    for (size_t i = 0; i < values; ++i) premultiplied_[i] = row[i];
  }
  std::vector<float> line;
  if (!spare_.empty()) {
    line = std::move(spare_.back());
    spare_.pop_back();
  }
  line.resize(out_.size());
  float* target = line.data();
  for (const auto& tap : columns_.taps) {
    const float* source = premultiplied_.data() + size_t{tap.first} * channels_;
    const float* weight = columns_.weights.data() + tap.weight;
    for (unsigned c = 0; c < channels_; ++c) {
      float sum = 0;
      for (uint32_t k = 0; k < tap.count; ++k) sum += weight[k] * source[size_t{k} * channels_ + c];
      *target++ = sum;
    }
  }
  kept_.push_back(std::move(line));
}

std::vector<float>& Resizer::get() {
  const auto& tap = rows_.taps[got_];
  const uint32_t oldest = put_ - static_cast<uint32_t>(kept_.size());
  std::fill(out_.begin(), out_.end(), 0.0F);
  for (uint32_t k = 0; k < tap.count; ++k) {
    const float weight = rows_.weights[tap.weight + k];
    const auto& line = kept_[tap.first + k - oldest];
    for (size_t i = 0; i < out_.size(); ++i) out_[i] += weight * line[i];
  }
  ++got_;
  const uint32_t needed = done() ? put_ : rows_.taps[got_].first;
  for (uint32_t index = oldest; index < needed && !kept_.empty(); ++index) {
    spare_.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
  return out_;
}

}  // namespace image
