// The checks of a device, in pieces: products whose sums are known, and memory that is written and read back.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "canary/values.hpp"
#include "common/backend.hpp"

namespace canary {

enum class Check { kInteger, kFloat, kDouble, kTensor, kWrite, kRead };
constexpr size_t kChecks = 6;
inline constexpr std::array kProducts = {Check::kInteger, Check::kFloat, Check::kDouble, Check::kTensor};
const char* name_of(Check check);

/// Sums of a product's rows and columns: by the sums of its factors, in 64-bit integers (Huang, Abraham 1984). One
/// wrong element is wrong in one row and in one column.
struct Sums {
  std::array<int64_t, kEdge> row{}, column{};
};
Sums expected_sums(uint64_t seed);

/// For tests: one bit that is flipped, of an element of a product or a word of memory.
struct Flip {
  uint64_t at = 0;
  unsigned bit = 0;  ///< modulo its size
};

/// What is not as it must be.
struct Mismatch {
  enum What : uint32_t { kRow, kColumn, kElement, kWord, kTotal, kMade };
  What what = kRow;
  uint32_t unit = 0;             ///< multiprocessor of a GPU, from 1; 0: not known
  uint64_t at = 0;               ///< row, column, element, or word of the memory
  uint64_t wanted = 0, got = 0;  ///< sums as signed numbers; of an element its bits, and 0 wanted; else as they are
};

/// Of one piece. Its length is of the work on the device alone, by the device's clock: on a CPU, of this thread.
struct Report {
  static constexpr size_t kKept = 8;
  uint64_t wrong = 0;  ///< mismatches, of which the first are kept
  std::vector<Mismatch> first;
  double ns = 0;
  double clock_mhz = 0;  ///< of a product on a GPU: of a multiprocessor meanwhile; 0: not known

  void note(const Mismatch& mismatch) {
    ++wrong;
    if (first.size() < kKept) first.push_back(mismatch);
  }
};

/// One sentence about what is wrong, for an operator.
std::string text_of(Check check, const Report& report);

/// A device under test. Touches it from open() on, in which it takes all its memory. Every piece has the same size for
/// ever, tens of microseconds to some hundred of work, and is done on return. One thread.
class Backend {
 public:
  virtual ~Backend() = default;
  /// `memory_bytes` 0: as much as the check of memory needs here.
  virtual void open(uint64_t memory_bytes) = 0;
  virtual void release() = 0;
  virtual bool has(Check check) const = 0;

  /// Products of the matrices of a seed, on every multiprocessor. `flip`: an element of one of them.
  virtual Report product(Check check, uint64_t seed, const std::optional<Flip>& flip) = 0;
  double operations() const { return operations_; }  ///< multiplications and additions of a piece

  /// Memory has so many parts of so many words each. Each is larger than what caches hold, where the device allows it.
  uint64_t parts() const { return parts_; }
  uint64_t part_words() const { return part_words_; }
  virtual Report write(uint64_t part, Pattern pattern, uint64_t seed) = 0;
  virtual Report read(uint64_t part, Pattern pattern, uint64_t seed) = 0;
  /// Takes other memory for a part, whose content is undefined then. False: there is none; the part stays.
  virtual bool move(uint64_t part) = 0;
  virtual void flip(uint64_t part, const Flip& flip) = 0;

 protected:
  double operations_ = 2.0 * kEdge * kEdge * kEdge;
  uint64_t parts_ = 0, part_words_ = 0;
};

std::unique_ptr<Backend> make_backend(const common::Setup& setup);
std::unique_ptr<Backend> make_cuda_backend(bool spin);  ///< where there is CUDA

}  // namespace canary
