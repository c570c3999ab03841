// What a plugin writes into the pipe for its state, in pieces of any size, and what a worker then finds on its disk.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "fuzz.hpp"
#include "tasks/state_file.hpp"

using namespace freeride;
using worker::StateFile;
using worker::StateReceiver;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TempFolder folder;
  if (size < 2 || size > 60'000) return 0;  // more does not fit into a pipe
  const uint64_t lease = data[0];
  const size_t piece = 1 + 8 * static_cast<size_t>(data[1]);
  data += 2;
  size -= 2;
  std::array<int, 2> pipe{};
  fuzz::must(pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  const Fd reader(pipe[0]), writer(pipe[1]);
  auto file = StateFile::create(folder.path(), "instance");
  fuzz::must(file.ok());
  StateReceiver receiver;
  for (size_t at = 0; at < size; at += piece) {
    const size_t count = std::min(piece, size - at);
    fuzz::must(write(writer.get(), data + at, count) == static_cast<ssize_t>(count));
    const auto progress = receiver.receive(reader.get(), lease, **file);
    if (!progress.ok()) {
      fuzz::must(!progress.error().message.empty());
      break;
    }
    if (*progress == StateReceiver::Progress::kDone) {
      const auto kept = (*file)->reader();
      fuzz::must(kept.ok());
      fuzz::must(static_cast<size_t>(lseek(kept->get(), 0, SEEK_END)) <= sizeof(freeride_saved_state) + size);
    }
  }
  // The same bytes as a file of an earlier worker's.
  const Fd stale(open((folder.path() / "state").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  fuzz::must(stale.valid() && write(stale.get(), data, size) == static_cast<ssize_t>(size));
  (void)worker::open_state(folder.path(), "instance");
  return 0;
}
