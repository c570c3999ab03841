#include "saved_state.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "freeride/base/files.hpp"
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

/// A state file, from its beginning, or what comes over a socket.
struct Source {
  int fd = -1;
  bool is_file = false;
  off_t offset = 0;

  bool read_all(void* data, size_t size) {
    char* at = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t got = is_file ? pread(fd, at, size, offset) : read(fd, at, size);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += got;
      offset += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }
};

Result<std::optional<SavedState>> read_state(Source source) {
  freeride_saved_state header{};
  auto* const bytes = reinterpret_cast<char*>(&header);
  if (!source.read_all(bytes, 1)) return std::optional<SavedState>();
  const Error bad{Code::kInternal, "the task's saved state is damaged", "load the task again, to start from zero"};
  if (!source.read_all(bytes + 1, sizeof(header) - 1)) return bad;
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
  if (!source.read_all(saved.bytes.data(), saved.bytes.size())) return bad;
  return std::optional<SavedState>(std::move(saved));
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
  if (write_all(fd, {reinterpret_cast<const char*>(&header), sizeof(header)}))
    write_all(fd, std::string_view(saved.bytes).substr(0, header.size));
}

Result<std::optional<SavedState>> read_saved_state(int fd) {
  return read_state({fd, true});
}

Result<std::optional<SavedState>> ask_for_saved_state(int socket) {
  const char ask = 1;
  if (!write_all(socket, {&ask, 1})) return errno_error("cannot ask for the task's saved state", errno);
  return read_state({socket, false});
}

void send_saved_state(int file_fd, int socket) {
  char asked = 0;
  if (!Source{socket, false}.read_all(&asked, 1)) return;
  std::array<char, 1 << 16> buffer{};
  for (off_t offset = 0;;) {
    const ssize_t got = pread(file_fd, buffer.data(), buffer.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || !write_all(socket, {buffer.data(), static_cast<size_t>(got)})) return;
    offset += got;
  }
}

}  // namespace freeride::runner
