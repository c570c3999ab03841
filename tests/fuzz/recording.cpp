// Recordings: whatever a file holds, it is read to its end within bounds; what can be recovered is whole from then on,
// and has what was readable before.
#include <fstream>
#include <sstream>
#include <string>

#include "columns.hpp"
#include "freeride/recorder/reader.hpp"
#include "freeride/recorder/trace.hpp"
#include "fuzz.hpp"

using namespace freeride;

namespace {

uint64_t count(const std::filesystem::path& file) {
  auto reader = recorder::Reader::open(file);
  if (!reader) return 0;
  uint64_t events = 0;
  for (; const auto event = (*reader)->next(); ++events) fuzz::must(event->time_ns >= 0 && event->published_ns >= 0);
  return events;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Columns also alone: within a file, lengths and checksums keep most changes from them.
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  size_t rows = 0;
  const bool whole = recorder::expand(bytes, 1'700'000'000'000'000'001, [&](int64_t, std::string_view event) {
    fuzz::must(!event.empty());
    return ++rows > 0;
  });
  fuzz::must(rows == (whole ? recorder::rows_of(bytes) : 0));
  recorder::Columns columns(static_cast<int64_t>(size));
  if (columns.add(bytes, 1, 0)) fuzz::must(recorder::rows_of(columns.take()) == 1);
  static const fuzz::TempFolder folder;
  const auto file = folder.path() / "a.mcap";
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  recorder::Range range;
  range.from_ns = 1, range.states_before = true, range.topics = {"t"};
  if (auto reader = recorder::Reader::open(file, range)) {
    std::ostringstream trace;
    recorder::write_trace(**reader, trace);
    fuzz::must(trace.str().ends_with("]}\n") || trace.str().empty());
  }
  count(file);
  const auto recovered = recorder::recover(file);
  if (!recovered || recovered->was_finished) return 0;
  const uint64_t events = count(file);
  fuzz::must(events <= recovered->events);
  const auto again = recorder::recover(file);
  fuzz::must(again.ok() && again->was_finished && count(file) == events);
  return 0;
}
