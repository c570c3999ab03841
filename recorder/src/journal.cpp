#include "freeride/recorder/journal.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <limits>
#include <system_error>
#include <utility>

#include "freeride/base/access.hpp"
#include "freeride/base/paths.hpp"

namespace freeride::recorder {
namespace {

constexpr const char* kHostsFolder = "/var/lib/freeride/recordings";
constexpr const char* kExtension = ".mcap";
constexpr int64_t kBelievedNs = 10 * kNsPerSec;  // so long an event is under way at most, by this host's clock
constexpr int64_t kPruneNs = 600 * kNsPerSec;
constexpr size_t kMaxBegins = 1024;
constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;
constexpr uint64_t kMinFileBytes = 1 << 20, kMaxFileBytes = 64 << 20;

bool is_state(const bus::Event& event) {
  return event.is("task.state/") || event.is("worker.state/") || event.is("plugin.state/") ||
         event.is("training.state/") || event.is("training.measures/") || event.is("training.plan/") ||
         event.is("batch.state/");
}

template <class State>
bool is_removed(const bus::Event& event) {
  if (!event.is(State::kTopic)) return false;
  const auto state = event.as<State>();
  return state && state->state == State::kRemoved;
}

struct OldFile {
  std::filesystem::path path;
  uint64_t size = 0;
};

std::vector<OldFile> files_in(const std::filesystem::path& folder) {
  std::vector<OldFile> files;
  std::error_code problem;
  std::filesystem::directory_iterator entries(folder, problem), end;
  for (; !problem && entries != end; entries.increment(problem)) {
    if (entries->path().extension() != kExtension) continue;
    struct stat info {};
    if (lstat(entries->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    files.push_back({entries->path(), static_cast<uint64_t>(info.st_size)});
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

// CLOCK_MONOTONIC of its boot, by what the disk says, and so any number.
int64_t end_of(const FileInfo& file) {
  const uint64_t since_begin =
      file.chunks > 0 ? static_cast<uint64_t>(file.end_ns) - static_cast<uint64_t>(file.clocks.wall_ns) : 0;
  const auto end = static_cast<int64_t>(static_cast<uint64_t>(file.clocks.monotonic_ns) + since_begin);
  return std::clamp<int64_t>(end, 0, -kLongAgo / 2);
}

uint64_t number_of(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  uint64_t number = 0;
  std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

// In the order of their names whatever the wall clock does: the number comes first.
std::string name_of(uint64_t number, int64_t wall_ns) {
  const time_t seconds = wall_ns / kNsPerSec;
  struct tm parts {};
  gmtime_r(&seconds, &parts);
  char date[32], name[64];
  strftime(date, sizeof date, "%Y-%m-%dT%H-%M-%SZ", &parts);
  std::snprintf(name, sizeof name, "%08llu_%s%s", static_cast<unsigned long long>(number), date, kExtension);
  return name;
}

}  // namespace

std::filesystem::path recordings_folder(const std::filesystem::path& given) {
  if (!given.empty()) return given;
  auto own = Paths::defaults().state_dir / "recordings";
  std::error_code ignored;
  if (!std::filesystem::exists(own, ignored) && std::filesystem::exists(kHostsFolder, ignored)) return kHostsFolder;
  return own;
}

Journal::Journal(JournalOptions options, const Clock& clock, std::function<Clocks()> clocks)
    : options_(std::move(options)), clock_(clock), clocks_(std::move(clocks)) {
  file_bytes_ = std::clamp(options_.keep_bytes / 16, kMinFileBytes, kMaxFileBytes);
}

Journal::~Journal() {
  if (!writer_) return;
  flush();
  if (auto finished = writer_->finish(); !finished) spdlog::warn("{}", finished.error().text());
}

Result<std::unique_ptr<Journal>> Journal::open(const JournalOptions& options, const Clock& clock,
                                               std::function<Clocks()> clocks) {
  std::unique_ptr<Journal> journal(new Journal(options, clock, std::move(clocks)));
  std::error_code problem;
  std::filesystem::create_directories(options.folder.parent_path(), problem);
  if (problem) return errno_error("cannot make " + options.folder.parent_path().string(), problem.value());
  if (auto made = make_private_folder(options.folder, options.group); !made) return made.error();
  if (auto locked = journal->lock(); !locked) return locked.error();
  const auto before = journal->end_unfinished();
  journal->date(before);
  if (auto begun = journal->begin_file(); begun) {
    journal->say_where_it_stopped(before);
  } else if (begun.error().code == Code::kExhausted) {
    journal->pause(begun.error(), 0);
  } else {
    return begun.error();
  }
  journal->prune();
  return journal;
}

Status Journal::lock() {
  const auto file = options_.folder / "lock";
  lock_ = Fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_.valid()) return errno_error("cannot lock the recordings in " + options_.folder.string(), errno);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return {};
  return Error{Code::kAlreadyExists, "another freeride-recorder writes to " + options_.folder.string(),
               "stop it, or choose another --recordings"};
}

std::vector<FileInfo> Journal::end_unfinished() {
  std::vector<FileInfo> before;
  for (const OldFile& file : files_in(options_.folder)) {
    next_number_ = std::max(next_number_, number_of(file.path) + 1);
    auto recovered = recover(file.path);
    if (recovered && !recovered->was_finished) {
      spdlog::info("{} was not ended: it has {} events; {} bytes after the last whole chunk are cut off",
                   file.path.string(), recovered->events, recovered->cut_bytes);
    } else if (!recovered && recovered.error().code == Code::kInvalidArgument) {
      std::error_code ignored;  // nothing in it could ever be read
      std::filesystem::remove(file.path, ignored);
      spdlog::info("{}: deleted", recovered.error().message);
    } else if (!recovered) {
      spdlog::warn("{}", recovered.error().text());
    }
    if (auto one = Reader::open(file.path)) before.push_back((*one)->files().front());
  }
  return before;
}

// When they ended, by clocks that nobody steps. An earlier boot's last file ended when the next boot began, at the
// latest: for how long the host was off nobody knows.
void Journal::date(const std::vector<FileInfo>& before) {
  std::string boot_id = clocks_().boot_id;
  int64_t boot_ns = 0;  // its clock's 0, by ours
  for (auto file = before.rbegin(); file != before.rend(); ++file) {
    if (file->clocks.boot_id != boot_id) {
      boot_id = file->clocks.boot_id;
      boot_ns = std::max(boot_ns - end_of(*file), kLongAgo);
    }
    closed_[file->file].ended_ns = boot_ns + end_of(*file);
  }
}

// What was before this process is a gap, too.
void Journal::say_where_it_stopped(const std::vector<FileInfo>& before) {
  const auto last = std::find_if(before.rbegin(), before.rend(), [](const auto& file) { return file.chunks > 0; });
  if (last == before.rend()) return;
  bus::RecordingGap gap;
  gap.reason = "stopped", gap.end_ns = clock_.now_ns();
  if (last->clocks.boot_id == writer_->clocks().boot_id) {
    gap.begin_ns = end_of(*last);
  }
  note_gap(gap);
}

Status Journal::begin_file() {
  const Clocks clocks = clocks_();
  if (auto room = has_room(); !room) return room;
  auto made = FileWriter::create(options_.folder / name_of(next_number_, clocks.wall_ns), clocks, options_.group);
  if (!made) return made.error();
  ++next_number_;
  if (writer_) {
    others_bytes_ += writer_->size_bytes();
    if (auto finished = writer_->finish(); !finished) spdlog::warn("{}", finished.error().text());
  }
  writer_ = std::move(*made);
  file_begun_ns_ = clock_.now_ns();
  tell_states();
  return {};
}

void Journal::tell_states() {
  static_assert(kMaxStates < FileWriter::kMaxTopics);
  const Clocks clocks = writer_->clocks();
  const int64_t now = clocks.wall_of(clock_.now_ns());
  for (const auto& [topic, state] : states_) append(topic, now, clocks.wall_of(state.published_ns), state.payload);
  if (!forgot_states_) return;
  bus::RecordingGap gap;
  gap.reason = "states";
  note_gap(gap);
}

void Journal::take(const bus::Event& event) {
  const int64_t now = clock_.now_ns();
  if (!writer_) {
    ++lost_in_pause_, ++lost_;
    if (is_state(event)) remember(event);
    return;
  }
  const Clocks& clocks = writer_->clocks();
  const int64_t at = event.envelope.t_ns;
  const bool is_believed = !event.envelope.kept && at <= now && at > now - kBelievedNs;
  const int64_t log_ns = clocks.wall_of(is_believed ? at : now);
  const int64_t publish_ns = is_believed || event.envelope.kept ? clocks.wall_of(at) : log_ns;
  if (event.is("bubble.begin/") && begins_.size() < kMaxBegins) {
    const std::string rest = event.topic.substr(event.topic.find('/'));
    const auto held = begins_.find(rest);
    if (held != begins_.end())
      add(held->second.topic, held->second.log_ns, held->second.publish_ns, held->second.payload);
    begins_[rest] = {event.topic, event.payload, log_ns, publish_ns};
    if (oldest_ns_ == 0) oldest_ns_ = now;
    return;
  }
  if (event.is("bubble.end/")) begins_.erase(event.topic.substr(event.topic.find('/')));
  add(event.topic, log_ns, publish_ns, event.payload);
  if (is_state(event)) remember(event);
}

void Journal::note_gap(const bus::RecordingGap& gap) {
  const int64_t now = clock_.now_ns();
  if (!writer_) return;
  bus::Envelope envelope;
  envelope.source = "recorder", envelope.seq = ++gaps_, envelope.t_ns = now;
  const int64_t wall = writer_->clocks().wall_of(now);
  add(std::string(bus::RecordingGap::kTopic) + "/" + gap.key(), wall, wall, bus::encode(envelope, gap));
}

void Journal::add(std::string_view topic, int64_t log_ns, int64_t publish_ns, std::string_view payload) {
  append(topic, log_ns, publish_ns, payload);
  if (writer_->buffered() >= FileWriter::kChunkBytes) flush();
}

void Journal::append(std::string_view topic, int64_t log_ns, int64_t publish_ns, std::string_view payload) {
  if (oldest_ns_ == 0) oldest_ns_ = clock_.now_ns();
  if (writer_->add(topic, log_ns, publish_ns, payload)) return;
  // Too many topics for one file.
  rotate();
  if (!writer_->add(topic, log_ns, publish_ns, payload)) ++lost_in_pause_, ++lost_;
}

void Journal::remember(const bus::Event& event) {
  if (is_removed<bus::TaskState>(event) || is_removed<bus::BatchState>(event)) {
    states_.erase(event.topic);
    return;
  }
  states_[event.topic] = {event.payload, event.envelope.t_ns, ++changes_};
  if (states_.size() <= kMaxStates) return;
  if (!std::exchange(forgot_states_, true))
    spdlog::warn("a recording begins with {} states of tasks, workers and ranks at most: there are more", kMaxStates);
  states_.erase(std::min_element(states_.begin(), states_.end(),
                                 [](const auto& a, const auto& b) { return a.second.changed < b.second.changed; }));
}

void Journal::release_begins() {
  for (const auto& [rest, begin] : std::exchange(begins_, {})) {
    append(begin.topic, begin.log_ns, begin.publish_ns, begin.payload);
  }
}

Status Journal::has_room() const {
  struct statvfs disk {};
  if (statvfs(options_.folder.c_str(), &disk) != 0) {
    return errno_error("cannot look at the disk of " + options_.folder.string(), errno);
  }
  if (static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize >= options_.keep_free_bytes) return {};
  return Error{Code::kExhausted,
               "the disk of " + options_.folder.string() + " has less than " +
                   std::to_string(options_.keep_free_bytes >> 20) + " MiB free",
               "make room there, or lower --keep-free"};
}

void Journal::flush() {
  release_begins();
  oldest_ns_ = 0;
  const uint64_t events = writer_->buffered_events();
  if (events == 0) return;
  Status written = has_room();
  const Status flushed = written ? writer_->flush() : Status();
  if (!written) writer_->drop();
  if (written && !flushed) written = flushed;
  if (!written) return pause(written.error(), events);
  if (paused()) go_on();
  if (others_bytes_ + writer_->size_bytes() > options_.keep_bytes) prune();
}

void Journal::pause(const Error& error, uint64_t lost) {
  lost_in_pause_ += lost, lost_ += lost;
  if (paused()) return;
  paused_since_ns_ = std::max<int64_t>(clock_.now_ns(), 1);
  spdlog::error("recording pauses: {}", error.text());
}

void Journal::go_on() {
  bus::RecordingGap gap;
  gap.reason = "disk", gap.lost = lost_in_pause_, gap.begin_ns = paused_since_ns_, gap.end_ns = clock_.now_ns();
  spdlog::info("recording continues; {} events are missing", lost_in_pause_);
  paused_since_ns_ = 0, lost_in_pause_ = 0;
  note_gap(gap);
  tell_states();  // some have changed meanwhile
}

void Journal::rotate() {
  flush();
  if (auto begun = begin_file(); !begun) {
    pause(begun.error(), 0);
  } else {
    prune();
  }
}

void Journal::tick() {
  const int64_t now = clock_.now_ns();
  if (!writer_) {
    if (now - tried_ns_ < kFlushAfterNs) return;
    tried_ns_ = now;
    if (begin_file()) go_on();
    return;
  }
  if (oldest_ns_ != 0 && now - oldest_ns_ >= kFlushAfterNs) {
    flush();
    // Who deletes the file that is being written wants it gone, not the recording to end.
    std::error_code ignored;
    if (!std::filesystem::exists(writer_->file(), ignored)) rotate();
  }
  if (writer_->size_bytes() >= file_bytes_ || now - file_begun_ns_ >= kFileNs) rotate();
  if (now - pruned_ns_ >= kPruneNs) prune();
}

std::optional<int64_t> Journal::due_ns() const {
  if (!writer_) return tried_ns_ + kFlushAfterNs;
  if (oldest_ns_ == 0) return std::nullopt;
  return oldest_ns_ + kFlushAfterNs;
}

void Journal::prune() {
  const int64_t now = pruned_ns_ = clock_.now_ns();
  auto files = files_in(options_.folder);
  std::erase_if(files, [&](const OldFile& file) { return writer_ && file.path == writer_->file(); });
  others_bytes_ = 0;
  for (const OldFile& file : files) others_bytes_ += file.size;
  const uint64_t current = writer_ ? writer_->size_bytes() : 0;
  std::map<std::filesystem::path, Closed> left;
  for (const OldFile& file : files) {
    const auto known = closed_.find(file.path);
    Closed closed = known == closed_.end() ? Closed{now} : known->second;
    if (others_bytes_ + current > options_.keep_bytes || now - closed.ended_ns > options_.keep_ns) {
      std::error_code problem;
      options_.remove(file.path, problem);
      if (!problem) {
        others_bytes_ -= file.size;
        continue;
      }
      if (!std::exchange(closed.stuck, true))
        spdlog::warn("cannot delete the recording {}: {}", file.path.string(), problem.message());
    }
    left.emplace(file.path, closed);
  }
  closed_ = std::move(left);
}

}  // namespace freeride::recorder
