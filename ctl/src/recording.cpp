#include "recording.hpp"

#include <fstream>
#include <iostream>
#include <limits>
#include <system_error>

#include "events.hpp"
#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/time.hpp"
#include "freeride/base/waiting.hpp"
#include "freeride/recorder/journal.hpp"
#include "freeride/recorder/trace.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "moment.hpp"

namespace freeride::ctl {
namespace {

Result<recorder::Range> range_of(const RecordingArguments& arguments) {
  recorder::Range range;
  const int64_t now = clock_ns(CLOCK_REALTIME);
  if (!arguments.from.empty()) {
    if (auto taken = take(range.from_ns, parse_moment(arguments.from, now)); !taken) return taken.error();
  }
  if (!arguments.to.empty()) {
    if (auto taken = take(range.to_ns, parse_moment(arguments.to, now)); !taken) return taken.error();
  }
  if (range.from_ns > range.to_ns) {
    return Error{Code::kInvalidArgument, "--from " + arguments.from + " is after --to " + arguments.to,
                 "exchange them"};
  }
  if (!arguments.topic.empty()) range.topics = {arguments.topic};
  return range;
}

bus::Event as_event(const recorder::Recorded& recorded) {
  bus::Event event;
  event.topic = recorded.topic, event.payload = recorded.payload;
  if (auto envelope = bus::decode<bus::Envelope>(event.payload)) event.envelope = std::move(*envelope);
  return event;
}

void say_damage(const recorder::Reader& reader) {
  if (reader.damaged() == 0) return;
  std::cerr << "freeride-ctl: " << reader.damaged() << " damaged chunks of the recording were left out\n";
}

nlohmann::json file_json(const recorder::FileInfo& file) {
  return {{"file", file.file.string()},     {"begin_ns", file.begin_ns},
          {"end_ns", file.end_ns},          {"size_bytes", file.size_bytes},
          {"chunks", file.chunks},          {"finished", file.finished},
          {"host", file.clocks.host},       {"boot_id", file.clocks.boot_id},
          {"wall_ns", file.clocks.wall_ns}, {"monotonic_ns", file.clocks.monotonic_ns}};
}

// How far a reader has come, by the times of what it reads.
class Progress {
 public:
  Progress(const recorder::Reader& reader, const recorder::Range& range, const std::string& out)
      : waiting_("writing " + out) {
    int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
    for (const auto& file : reader.files()) {
      if (file.chunks > 0) begin = std::min(begin, file.begin_ns), end = std::max(end, file.end_ns);
    }
    begin_ = static_cast<double>(std::max(begin, range.from_ns)),
    end_ = static_cast<double>(std::min(end, range.to_ns));
  }
  void at(int64_t time_ns) {
    if (end_ > begin_) waiting_.at(std::max(0.0, (static_cast<double>(time_ns) - begin_) / (end_ - begin_)));
  }

 private:
  Waiting waiting_;
  double begin_ = 0, end_ = 0;
};

Status export_mcap(recorder::Reader& reader, const std::string& out, Progress& progress, uint64_t& events) {
  std::unique_ptr<recorder::FileWriter> writer;
  while (const auto event = reader.next()) {
    progress.at(event->time_ns);
    if (!writer) {
      recorder::Clocks clocks;
      clocks.wall_ns = event->wall_minus_monotonic_ns;  // at the monotonic clock's 0
      for (const auto& file : reader.files()) {
        if (file.clocks.wall_ns - file.clocks.monotonic_ns == event->wall_minus_monotonic_ns) clocks = file.clocks;
      }
      auto made = recorder::FileWriter::create(out, clocks, std::nullopt, recorder::Layout::kJson);
      if (!made) return made.error();
      writer = std::move(*made);
    }
    if (!writer->add(event->topic, event->time_ns, event->published_ns, event->payload)) {
      return Error{Code::kExhausted, "the range has too many topics for one file", "choose some with --topic"};
    }
    ++events;
    if (writer->buffered() < recorder::FileWriter::kChunkBytes) continue;
    if (auto flushed = writer->flush(); !flushed) return flushed;
  }
  return writer ? writer->finish() : Status();
}

Status export_trace(recorder::Reader& reader, const std::string& out, Progress& progress, uint64_t& spans) {
  std::ofstream file(out, std::ios::binary | std::ios::trunc);
  if (file) spans = recorder::write_trace(reader, file, [&](int64_t time_ns) { progress.at(time_ns); });
  file.close();
  if (!file) return errno_error("cannot write " + out, errno, "choose another file");
  return {};
}

}  // namespace

Result<std::unique_ptr<recorder::Reader>> open_recording(const std::string& path, recorder::Range range) {
  const auto folder = recorder::recordings_folder(path);
  auto reader = recorder::Reader::open(folder, std::move(range));
  const bool none = !reader ? reader.error().code == Code::kNotFound : (*reader)->files().empty();
  if (none) {
    return Error{Code::kNotFound, "there is no recording at " + folder.string(),
                 "start freeride-recorder, or name a file or folder with --recording"};
  }
  return reader;
}

Result<int> run_recording_ls(Session& session, const RecordingArguments& arguments) {
  auto reader = open_recording(arguments.path, {});
  if (!reader) return reader.error();
  if (session.json()) {
    auto files = nlohmann::json::array();
    for (const auto& file : (*reader)->files()) files.push_back(file_json(file));
    session.out() << dump({{"files", files}}) << "\n";
    return kExitOk;
  }
  Table table({"FILE", "BEGIN", "END", ">SIZE", "HOST", "STATE"});
  for (const auto& file : (*reader)->files()) {
    table.add({file.file.filename().string(), file.begin_ns == 0 ? "-" : moment_text(file.begin_ns),
               file.end_ns == 0 ? "-" : moment_text(file.end_ns), human_bytes(static_cast<int64_t>(file.size_bytes)),
               file.clocks.host, file.finished ? "whole" : "open"});
  }
  session.out() << table.text();
  return kExitOk;
}

Result<int> run_recording_view(Session& session, const RecordingArguments& arguments) {
  auto range = range_of(arguments);
  if (!range) return range.error();
  auto reader = open_recording(arguments.path, std::move(*range));
  if (!reader) return reader.error();
  catch_interrupts();
  for (uint64_t seen = 0; (arguments.count == 0 || seen < arguments.count) && !interrupted(); ++seen) {
    const auto recorded = (*reader)->next();
    if (!recorded) break;
    const bus::Event event = as_event(*recorded);
    if (session.json()) {
      auto json = event_json(event);
      json["time_unix_ns"] = recorded->time_ns;
      session.out() << dump(json) << "\n";
    } else {
      session.out() << event_line(event, moment_text(recorded->time_ns));
    }
    if (!session.out()) return Error{Code::kInternal, "cannot write to the standard output", ""};
  }
  say_damage(**reader);
  return kExitOk;
}

Result<int> run_recording_export(Session& session, const RecordingArguments& arguments) {
  const bool trace = arguments.as.empty() ? arguments.out.ends_with(".json") : arguments.as == "trace";
  if (arguments.as.empty() && !trace && !arguments.out.ends_with(".mcap")) {
    return Error{Code::kInvalidArgument, "'" + arguments.out + "' says not what it is to be",
                 "name it *.mcap or *.json, or say --as mcap or --as trace"};
  }
  auto range = range_of(arguments);
  if (!range) return range.error();
  std::error_code ignored;
  if (std::filesystem::exists(arguments.out, ignored)) {
    return Error{Code::kAlreadyExists, arguments.out + " exists", "choose another file"};
  }
  auto reader = open_recording(arguments.path, *range);
  if (!reader) return reader.error();
  uint64_t count = 0;
  Status done;
  {
    Progress progress(**reader, *range, arguments.out);
    done = trace ? export_trace(**reader, arguments.out, progress, count)
                 : export_mcap(**reader, arguments.out, progress, count);
  }
  if (!done) return done.error();
  say_damage(**reader);
  if (count == 0) {
    return Error{Code::kNotFound, "the recording has nothing of that range", "see freeride-ctl recording ls"};
  }
  if (session.json()) {
    session.out() << dump({{"file", arguments.out}, {trace ? "spans" : "events", count}}) << "\n";
  } else {
    session.out() << arguments.out << ": " << human_count(count) << (trace ? " spans" : " events") << "\n";
  }
  return kExitOk;
}

}  // namespace freeride::ctl
