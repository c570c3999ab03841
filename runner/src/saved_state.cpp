#include "saved_state.hpp"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "grown.hpp"

namespace freeride::runner {
namespace {

constexpr size_t kMostReasonBytes = 1800;

freeride_status append(void* context, const void* data, uint64_t size) {
  auto& bytes = *static_cast<std::string*>(context);
  if (size > FREERIDE_STATE_MOST_BYTES - bytes.size()) return FREERIDE_OUT_OF_MEMORY;
  if (size > 0) bytes.append(static_cast<const char*>(data), static_cast<size_t>(size));
  return FREERIDE_OK;
}

bool write_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

bool read_all(int fd, void* data, size_t size, off_t offset) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = pread(fd, at, size, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    offset += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

std::optional<freeride_state> state_extension(const freeride_plugin& plugin) {
  if (plugin.extension == nullptr) return std::nullopt;
  const auto* theirs = static_cast<const freeride_state*>(plugin.extension(FREERIDE_EXTENSION_STATE));
  if (theirs == nullptr) return std::nullopt;
  const freeride_state state = read_grown(*theirs);
  return state.save != nullptr && state.restore != nullptr ? std::optional(state) : std::nullopt;
}

freeride_status collect_state(const freeride_state& state, void* task, std::string& bytes) {
  bytes.clear();
  const freeride_state_sink sink{sizeof(freeride_state_sink), 0, &bytes, &append};
  return state.save(task, &sink);
}

void write_saved_state(int fd, const SavedState& saved) {
  freeride_saved_state header{};
  header.magic = FREERIDE_STATE_MAGIC;
  header.major = FREERIDE_PAGES_MAJOR;
  header.version = saved.version;
  header.lease_id = saved.lease_id;
  header.steps = saved.steps;
  header.status = saved.status;
  header.present = saved.present ? 1 : 0;
  header.size = saved.status == FREERIDE_OK ? saved.bytes.size() : std::min(saved.bytes.size(), kMostReasonBytes);
  std::memcpy(header.plugin, saved.plugin.data(), std::min(saved.plugin.size(), sizeof(header.plugin) - 1));
  if (write_all(fd, &header, sizeof(header))) write_all(fd, saved.bytes.data(), static_cast<size_t>(header.size));
}

Result<std::optional<SavedState>> read_saved_state(int fd) {
  freeride_saved_state header{};
  char first = 0;
  if (!read_all(fd, &first, 1, 0)) return std::optional<SavedState>();
  const Error bad{Code::kInternal, "the task's saved state is damaged", "load the task again to begin anew"};
  if (!read_all(fd, &header, sizeof(header), 0)) return bad;
  if (header.magic != FREERIDE_STATE_MAGIC || header.major != FREERIDE_PAGES_MAJOR ||
      header.size > FREERIDE_STATE_MOST_BYTES || header.status != FREERIDE_OK) {
    return bad;
  }
  SavedState saved;
  saved.lease_id = header.lease_id;
  saved.steps = header.steps;
  saved.version = header.version;
  saved.present = header.present != 0;
  saved.plugin.assign(header.plugin, strnlen(header.plugin, sizeof(header.plugin)));
  saved.bytes.resize(static_cast<size_t>(header.size));
  if (!read_all(fd, saved.bytes.data(), saved.bytes.size(), sizeof(header))) return bad;
  return std::optional<SavedState>(std::move(saved));
}

}  // namespace freeride::runner
