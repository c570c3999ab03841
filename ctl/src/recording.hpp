// `recording`: what the flight recorder has written, listed, printed and taken out. Needs no manager.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "freeride/recorder/reader.hpp"
#include "session.hpp"

namespace freeride::ctl {

struct RecordingArguments {
  std::string path;      ///< a file or a folder; empty: where freeride-recorder writes
  std::string from, to;  ///< moments; empty: the first, the last
  std::string topic;     ///< prefix; empty: all
  uint64_t count = 0;    ///< view: end after so many; 0: all
  std::string out, as;   ///< export: the file to make; "mcap", "trace", or empty: by its name
};

/// Errors: kNotFound (there is no recording: says where it looked and what to start), kPermission.
Result<std::unique_ptr<recorder::Reader>> open_recording(const std::string& path, recorder::Range range);

Result<int> run_recording_ls(Session& session, const RecordingArguments& arguments);
Result<int> run_recording_view(Session& session, const RecordingArguments& arguments);
Result<int> run_recording_export(Session& session, const RecordingArguments& arguments);

}  // namespace freeride::ctl
