#include "canary/checks.hpp"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace canary {
namespace {

constexpr uint64_t kPartBytes = 64u << 10;
constexpr uint64_t kMemoryBytes = 4u << 20;
// Of an element, whatever it is made of: above it none is.
constexpr double kLargest = 64.0 * kEdge;

double thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

template <class T>
struct Bits {
  using Type = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  static Type of(T value) {
    Type bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }
  static T with(T value, unsigned bit) {
    const Type bits = of(value) ^ Type { 1 } << (bit % (8 * sizeof(T)));
    std::memcpy(&value, &bits, sizeof(bits));
    return value;
  }
};

class CpuBackend final : public Backend {
 public:
  void open(uint64_t memory_bytes) override {
    parts_ = std::max<uint64_t>(1, (memory_bytes == 0 ? kMemoryBytes : memory_bytes) / kPartBytes);
    part_words_ = kPartBytes / sizeof(uint64_t);
    memory_.resize(parts_);
    for (auto& part : memory_) part.assign(part_words_, 0);
    for (auto* factor : {&a_, &b_}) factor->resize(size_t{kEdge} * kEdge);
  }
  void release() override { std::vector<std::vector<uint64_t>>().swap(memory_); }
  bool has(Check check) const override { return check != Check::kTensor; }

  Report product(Check check, uint64_t seed, const std::optional<Flip>& flip) override {
    const double begin_ns = thread_ns();
    for (unsigned row = 0; row < kEdge; ++row) {
      for (unsigned column = 0; column < kEdge; ++column) {
        a_[row * kEdge + column] = element_of(seed, 0, row, column);
        b_[row * kEdge + column] = element_of(seed, 1, row, column);
      }
    }
    Report report;
    if (check == Check::kInteger) multiply<int32_t>(seed, flip, report);
    if (check == Check::kFloat) multiply<float>(seed, flip, report);
    if (check == Check::kDouble) multiply<double>(seed, flip, report);
    report.ns = thread_ns() - begin_ns;
    return report;
  }

  Report write(uint64_t part, Pattern pattern, uint64_t seed) override {
    Report report;
    const double begin_ns = thread_ns();
    for (uint64_t i = 0; i < part_words_; ++i) memory_[part][i] = word_of(pattern, seed, part * part_words_ + i);
    report.ns = thread_ns() - begin_ns;
    return report;
  }

  Report read(uint64_t part, Pattern pattern, uint64_t seed) override {
    Report report;
    const double begin_ns = thread_ns();
    for (uint64_t i = 0; i < part_words_; ++i) {
      const uint64_t at = part * part_words_ + i, wanted = word_of(pattern, seed, at), got = memory_[part][i];
      if (got != wanted) report.note({Mismatch::kWord, 0, at, wanted, got});
    }
    report.ns = thread_ns() - begin_ns;
    return report;
  }

  bool move(uint64_t part) override {
    std::vector<uint64_t> other(part_words_);  // before the old one goes: else it would be the same
    memory_[part].swap(other);
    return true;
  }

  void flip(uint64_t part, const Flip& flip) override {
    memory_[part][flip.at % part_words_] ^= uint64_t{1} << (flip.bit % 64);
  }

 private:
  template <class T>
  void multiply(uint64_t seed, const std::optional<Flip>& flip, Report& report) {
    std::array<T, size_t{kEdge} * kEdge> product{};
    for (unsigned row = 0; row < kEdge; ++row) {
      for (unsigned k = 0; k < kEdge; ++k) {
        const T factor = static_cast<T>(a_[row * kEdge + k]);
        for (unsigned column = 0; column < kEdge; ++column)
          product[row * kEdge + column] += factor * static_cast<T>(b_[k * kEdge + column]);
      }
    }
    if (flip) {
      T& element = product[flip->at % product.size()];
      element = Bits<T>::with(element, flip->bit);
    }
    Sums sums;
    for (uint32_t i = 0; i < product.size(); ++i) {
      const auto value = static_cast<double>(product[i]);
      // Else its sum would hide what is behind the point, and none that is no number has one.
      if (!(std::fabs(value) <= kLargest) || value != std::nearbyint(value)) {
        report.note({Mismatch::kElement, 0, i, 0, Bits<T>::of(product[i])});
        continue;
      }
      sums.row[i / kEdge] += static_cast<int64_t>(value);
      sums.column[i % kEdge] += static_cast<int64_t>(value);
    }
    const Sums wanted = expected_sums(seed);
    for (uint32_t i = 0; i < kEdge; ++i) {
      if (sums.row[i] != wanted.row[i])
        report.note({Mismatch::kRow, 0, i, static_cast<uint64_t>(wanted.row[i]), static_cast<uint64_t>(sums.row[i])});
      if (sums.column[i] != wanted.column[i])
        report.note(
            {Mismatch::kColumn, 0, i, static_cast<uint64_t>(wanted.column[i]), static_cast<uint64_t>(sums.column[i])});
    }
  }

  std::vector<std::vector<uint64_t>> memory_;
  std::vector<int> a_, b_;
};

std::string hex(uint64_t value) {
  static const char* const digits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += digits[value >> shift & 15];
  return "0x" + text;
}

}  // namespace

const char* name_of(Check check) {
  switch (check) {
    case Check::kInteger:
      return "integer product";
    case Check::kFloat:
      return "float product";
    case Check::kDouble:
      return "double product";
    case Check::kTensor:
      return "tensor core product";
    case Check::kWrite:
      return "memory write";
    case Check::kRead:
      return "memory read";
  }
  return "check";
}

Sums expected_sums(uint64_t seed) {
  std::array<int64_t, kEdge> of_columns{}, of_rows{};  // column sums of the left factor, row sums of the right one
  for (unsigned i = 0; i < kEdge; ++i) {
    for (unsigned k = 0; k < kEdge; ++k) {
      of_columns[k] += element_of(seed, 0, i, k);
      of_rows[i] += element_of(seed, 1, i, k);
    }
  }
  Sums sums;
  for (unsigned i = 0; i < kEdge; ++i) {
    for (unsigned k = 0; k < kEdge; ++k) {
      sums.row[i] += element_of(seed, 0, i, k) * of_rows[k];
      sums.column[i] += of_columns[k] * element_of(seed, 1, k, i);
    }
  }
  return sums;
}

std::string text_of(Check check, const Report& report) {
  std::string text = std::string(name_of(check)) + ": " + std::to_string(report.wrong) + " wrong";
  if (report.first.empty()) return text;
  const Mismatch& first = report.first.front();
  const auto signed_text = [](uint64_t sum) { return std::to_string(static_cast<int64_t>(sum)); };
  switch (first.what) {
    case Mismatch::kRow:
    case Mismatch::kColumn: {
      text += std::string(", ") + (first.what == Mismatch::kRow ? "row " : "column ") + std::to_string(first.at);
      // One wrong element is where its row and its column meet.
      const auto crossing = std::find_if(report.first.begin(), report.first.end(), [&](const Mismatch& other) {
        return other.what == (first.what == Mismatch::kRow ? Mismatch::kColumn : Mismatch::kRow) &&
               other.unit == first.unit && other.got - other.wanted == first.got - first.wanted;
      });
      if (crossing != report.first.end())
        text += std::string(first.what == Mismatch::kRow ? ", column " : ", row ") + std::to_string(crossing->at);
      text += ": its sum is " + signed_text(first.got) + " and must be " + signed_text(first.wanted);
      break;
    }
    case Mismatch::kElement:
      text += ", row " + std::to_string(first.at / kEdge) + ", column " + std::to_string(first.at % kEdge) +
              ": it has the bits " + hex(first.got) + ", which is no whole number in range";
      break;
    case Mismatch::kWord:
      text += ", word " + std::to_string(first.at) + ": " + hex(first.got) + " and must be " + hex(first.wanted) +
              ", different bits " + hex(first.got ^ first.wanted);
      break;
    case Mismatch::kTotal:
      text += ": the sum of all is " + signed_text(first.got) + " and must be " + signed_text(first.wanted);
      break;
    case Mismatch::kMade:
      text += ": " + std::to_string(first.got) + " of " + std::to_string(first.wanted) + " products were made";
      break;
  }
  if (first.unit != 0) text += ", multiprocessor " + std::to_string(first.unit - 1);
  return text;
}

std::unique_ptr<Backend> make_backend(const common::Setup& setup) {
  if constexpr (common::kHasCuda) {
    if (setup.backend == common::Backend::kCuda) return make_cuda_backend(setup.spin);
  }
  return std::make_unique<CpuBackend>();
}

}  // namespace canary
