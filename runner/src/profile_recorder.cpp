#include "profile_recorder.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "freeride/base/files.hpp"

namespace freeride::runner {
namespace {

// Pieces leave room for the steps that they belong to, and for starts and pauses.
constexpr size_t kMostPieces = FREERIDE_PROFILE_MOST_SAMPLES / 2;
// Starts and pauses come with every lease; a few hundred say enough.
constexpr size_t kMostOthers = FREERIDE_PROFILE_MOST_SAMPLES / 8 * 5;

}  // namespace

void ProfileRecorder::add(uint32_t kind, uint32_t piece, int64_t duration_ns) {
  size_t most = FREERIDE_PROFILE_MOST_SAMPLES;
  if (kind == FREERIDE_PROFILE_PIECE) most = kMostPieces;
  if (kind == FREERIDE_PROFILE_START || kind == FREERIDE_PROFILE_PAUSE) most = kMostOthers;
  if (samples_.size() >= most) return;
  samples_.push_back({static_cast<uint64_t>(std::max<int64_t>(0, duration_ns)), kind, piece});
}

void ProfileRecorder::piece(int64_t duration_ns) {
  add(FREERIDE_PROFILE_PIECE, piece_++, duration_ns);
}

void ProfileRecorder::step(int64_t step_ns, int64_t piece_ns) {
  if (piece_ > 0) piece(piece_ns);  // a step without yield points has no pieces
  piece_ = 0;
  add(FREERIDE_PROFILE_STEP, 0, step_ns);
}

void ProfileRecorder::write(int fd, int64_t stop_ns) const {
  freeride_profile_record header{};
  header.magic = FREERIDE_PROFILE_MAGIC;
  header.major = FREERIDE_PAGES_MAJOR;
  header.samples = static_cast<uint32_t>(samples_.size());
  header.stop_ns = static_cast<uint64_t>(std::max<int64_t>(0, stop_ns));
  std::string bytes(sizeof(header) + samples_.size() * sizeof(samples_[0]), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (!samples_.empty())
    std::memcpy(bytes.data() + sizeof(header), samples_.data(), samples_.size() * sizeof(samples_[0]));
  (void)write_all(fd, bytes);  // unless nobody reads any more
}

}  // namespace freeride::runner
