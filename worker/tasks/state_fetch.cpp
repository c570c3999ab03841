#include "tasks/state_fetch.hpp"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/pages.h"

namespace freeride::worker {
namespace {

constexpr int64_t kAgainNs = kNsPerSec / 2;
constexpr size_t kLeastBytes = 64u << 10;  // of a piece that is not the last: smaller ones would never end

Error not_whole(const std::string& what) {
  return Error{Code::kInternal, "the saved state of the other host " + what, ""};
}

bool is_ours(const freeride_saved_state& header, const std::string& instance, uint64_t file_bytes) {
  return is_header_of(header, instance) && header.size <= FREERIDE_STATE_MOST_BYTES &&
         file_bytes == sizeof(header) + header.size;
}

// Of the state that is here; 0: there is none.
uint64_t steps_here(const std::filesystem::path& folder, const std::string& instance) {
  const Fd file = open_state(folder, instance);
  freeride_saved_state header{};
  const bool read = file.valid() && pread(file.get(), &header, sizeof(header), 0) == ssize_t{sizeof(header)};
  return read ? header.steps : 0;
}

}  // namespace

struct StateFetch::Going {
  Request request;
  std::unique_ptr<StateFile> file;
  uint64_t file_bytes = 0;
  int64_t away_since_ns = 0;  // that the other worker is; 0: it is there
};

void StateFetch::get(Request request) {
  auto going = std::make_shared<Going>();
  going->request = std::move(request);
  next(going);
}

void StateFetch::next(const std::shared_ptr<Going>& going) {
  if (under_way_ >= kMostAtOnce) return waiting_.push_back(going);
  ++under_way_;
  ask_(going->request.wish, [this, going](Result<FilePiece> piece) {
    --under_way_;
    if (going->request.wanted()) take(going, std::move(piece));
    while (!waiting_.empty() && under_way_ < kMostAtOnce) {
      const auto first = std::move(waiting_.front());
      waiting_.pop_front();
      if (first->request.wanted()) next(first);
    }
  });
}

void StateFetch::take(const std::shared_ptr<Going>& going, Result<FilePiece> piece) {
  if (piece.ok()) {
    going->away_since_ns = 0;
    return take_bytes(going, *piece);
  }
  const Code code = piece.error().code;
  const int64_t now_ns = SteadyClock::now();
  if (going->away_since_ns == 0) going->away_since_ns = now_ns;
  const bool may_pass = code == Code::kTimeout || code == Code::kUnavailable || code == Code::kExhausted;
  if (!may_pass || now_ns - going->away_since_ns > kPatienceNs) return going->request.done(piece.error(), false);
  loop_.at(now_ns + kAgainNs, [this, going] {
    if (going->request.wanted()) next(going);
  });
}

void StateFetch::take_bytes(const std::shared_ptr<Going>& going, const FilePiece& piece) {
  const Request& request = going->request;
  const bus::FileReply& reply = piece.reply;
  std::string_view bytes = piece.bytes;
  if (going->file == nullptr) {
    freeride_saved_state header{};
    if (bytes.size() < sizeof(header)) return request.done(not_whole("is shorter than its header"), false);
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (!is_ours(header, request.instance, reply.bytes)) return request.done(not_whole("is not this task's"), false);
    auto file = StateFile::create(request.folder, request.instance);
    if (!file.ok()) return request.done(file.error(), true);
    going->file = std::move(*file);
    going->file_bytes = reply.bytes;
    if (auto begun = going->file->begin(header); !begun.ok()) return request.done(begun, true);
    bytes.remove_prefix(sizeof(header));
  }
  const uint64_t now_at = request.wish.offset + piece.bytes.size();
  if (reply.bytes != going->file_bytes || now_at > reply.bytes)
    return request.done(not_whole("changed meanwhile"), false);
  if (auto s = going->file->append(bytes.data(), bytes.size()); !s.ok()) return request.done(s, true);
  going->request.wish.offset = now_at;
  if (now_at < going->file_bytes) {
    if (piece.bytes.size() < kLeastBytes) return request.done(not_whole("is cut off"), false);
    return next(going);
  }
  // It may have been here before, and have come further then than where it was last.
  if (steps_here(request.folder, request.instance) > going->file->header().steps) return request.done({}, false);
  const Status kept = going->file->keep();
  request.done(kept, !kept.ok());
}

}  // namespace freeride::worker
