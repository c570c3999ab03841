#include "tasks/state_fetch.hpp"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/pages.h"

namespace freeride::worker {
namespace {

constexpr int64_t kPatienceNs = 30 * kNsPerSec;  // without a piece
constexpr int64_t kAgainNs = kNsPerSec / 2;

Error not_whole(const std::string& what) {
  return Error{Code::kInternal, "the saved state of the other host " + what, ""};
}

bool is_ours(const freeride_saved_state& header, const std::string& instance, uint64_t file_bytes) {
  return header.magic == FREERIDE_STATE_MAGIC && header.major == FREERIDE_PAGES_MAJOR &&
         header.size <= FREERIDE_STATE_MOST_BYTES && file_bytes == sizeof(header) + header.size &&
         std::string(header.instance, strnlen(header.instance, sizeof(header.instance))) == instance;
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
  int64_t heard_ns = 0;
};

void StateFetch::get(Request request) {
  auto going = std::make_shared<Going>();
  going->request = std::move(request);
  going->heard_ns = SteadyClock::now();
  next(going);
}

void StateFetch::next(const std::shared_ptr<Going>& going) {
  ask_(going->request.wish, [this, going](Result<FilePiece> piece) { take(going, std::move(piece)); });
}

void StateFetch::take(const std::shared_ptr<Going>& going, Result<FilePiece> piece) {
  const Request& request = going->request;
  if (!request.wanted()) return;
  const int64_t now_ns = SteadyClock::now();
  if (!piece.ok()) {
    const Code code = piece.error().code;
    const bool away = code == Code::kTimeout || code == Code::kUnavailable;
    if (!away || now_ns - going->heard_ns > kPatienceNs) return request.done(piece.error());
    loop_.at(now_ns + kAgainNs, [this, going] {
      if (going->request.wanted()) next(going);
    });
    return;
  }
  going->heard_ns = now_ns;
  const bus::FileReply& reply = piece->reply;
  std::string_view bytes = piece->bytes;
  if (going->file == nullptr) {
    freeride_saved_state header{};
    if (bytes.size() < sizeof(header)) return request.done(not_whole("is shorter than its header"));
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (!is_ours(header, request.instance, reply.bytes)) return request.done(not_whole("is not this task's"));
    auto file = StateFile::create(request.folder, request.instance);
    if (!file.ok()) return request.done(file.error());
    going->file = std::move(*file);
    going->file_bytes = reply.bytes;
    if (auto begun = going->file->begin(header); !begun.ok()) return request.done(begun);
    bytes.remove_prefix(sizeof(header));
  }
  const uint64_t now_at = request.wish.offset + piece->bytes.size();
  if (reply.bytes != going->file_bytes || now_at > reply.bytes) return request.done(not_whole("changed meanwhile"));
  if (auto s = going->file->append(bytes.data(), bytes.size()); !s.ok()) return request.done(s);
  going->request.wish.offset = now_at;
  if (now_at < going->file_bytes) {
    if (piece->bytes.empty()) return request.done(not_whole("is cut off"));
    return next(going);
  }
  // It may have been here before, and have come further then than where it was last.
  if (steps_here(request.folder, request.instance) > going->file->header().steps) return request.done({});
  request.done(going->file->keep());
}

}  // namespace freeride::worker
