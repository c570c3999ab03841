#include "batch_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "json.hpp"

namespace freeride::ctl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBuffer = 1u << 20;

// Written whole, or not at all.
class NewFile {
 public:
  explicit NewFile(fs::path path)
      : path_(std::move(path)), fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    good_ = fd_.valid();
  }
  void add(std::string_view bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= kBuffer) flush();
  }
  void add(uint64_t number) {
    std::array<char, 8> bytes{};
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(number >> (8 * i));
    add(std::string_view(bytes.data(), bytes.size()));
  }
  Status close() {
    flush();
    if (good_ && fsync(fd_.get()) == 0) return {};
    return errno_error("cannot write " + path_.string(), errno);
  }

 private:
  void flush() {
    good_ = good_ && write_all(fd_.get(), buffer_);
    buffer_.clear();
  }
  fs::path path_;
  Fd fd_;
  std::string buffer_;
  bool good_ = false;
};

// Two numbers for each line that is not blank: where it begins, and where it ends without its end of line.
Result<uint64_t> index_lines(int input, const fs::path& name, NewFile& index) {
  std::string buffer(kBuffer, '\0');
  uint64_t items = 0, at = 0, begin = 0, end = 0;  // `end`: behind the last that is no white space
  bool blank = true;
  const auto finish = [&] {
    if (!blank) {
      index.add(begin);
      index.add(end);
      ++items;
    }
    begin = end = at + 1;
    blank = true;
  };
  for (;;) {
    const ssize_t got = read(input, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error("cannot read " + name.string(), errno);
    if (got == 0) break;
    for (ssize_t i = 0; i < got; ++i, ++at) {
      const char c = buffer[static_cast<size_t>(i)];
      if (c == '\n') {
        finish();
      } else if (c != '\r') {
        end = at + 1;
        blank = blank && (c == ' ' || c == '\t');
      }
    }
  }
  finish();
  return items;
}

Result<uint64_t> index_folder(const fs::path& input, const fs::path& folder, NewFile& index) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(input, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    std::error_code ignored;
    if (name[0] != '.' && at->is_regular_file(ignored)) names.push_back(std::move(name));
  }
  if (error) return errno_error("cannot read the folder " + input.string(), error.value());
  std::sort(names.begin(), names.end());
  NewFile list(folder / "names");
  uint64_t at = 0;
  for (const std::string& name : names) {
    list.add(name);
    list.add(std::string_view("\0", 1));
    index.add(at);
    index.add(at + name.size());
    at += name.size() + 1;
  }
  if (auto s = list.close(); !s) return s.error();
  return names.size();
}

Status sync_folder(const fs::path& folder) {
  const Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid() && fsync(fd.get()) == 0) return {};
  return errno_error("cannot write the folder " + folder.string(), errno);
}

Result<uint64_t> fill(const BatchFiles& files, const std::string& id) {
  const fs::path folder = files.folder();
  NewFile index(folder / "index");
  const Fd input(open(files.input.c_str(), O_RDONLY | O_CLOEXEC));
  if (!input.valid()) return errno_error("cannot read the input " + files.input.string(), errno);
  struct stat before {};
  fstat(input.get(), &before);
  auto items =
      files.kind == "files" ? index_folder(files.input, folder, index) : index_lines(input.get(), files.input, index);
  if (!items) return items;
  if (auto s = index.close(); !s) return s.error();
  const nlohmann::json info{{"version", 1},
                            {"id", id},
                            {"items", *items},
                            {"kind", files.kind},
                            {"input", kBatchInput},
                            {"size", before.st_size},
                            {"mtime_ns", before.st_mtim.tv_sec * 1'000'000'000LL + before.st_mtim.tv_nsec},
                            {"tries", files.tries},
                            {"in_order", files.in_order},
                            {"output", files.output.filename().string()},
                            {"failed", files.failed().filename().string()}};
  NewFile about(folder / "batch.json");
  about.add(dump(info, 2) + "\n");
  if (auto s = about.close(); !s) return s.error();
  if (auto s = sync_folder(folder); !s) return s.error();
  if (auto s = sync_folder(folder.parent_path()); !s) return s.error();
  return items;
}

Status write_empty(const fs::path& output) {
  const fs::path made = output.string() + ".parts.empty";
  std::error_code error;
  fs::remove(made, error);
  NewFile file(made);
  if (auto s = file.close(); !s) return s;
  fs::rename(made, output, error);
  return error ? errno_error("cannot write " + output.string(), error.value()) : sync_folder(output.parent_path());
}

}  // namespace

fs::path BatchFiles::failed() const {
  return output.parent_path() / (output.stem().string() + ".failed.jsonl");
}

Status check_batch_files(BatchFiles& files) {
  std::error_code error;
  for (fs::path* path : {&files.input, &files.output}) {
    std::string plain = fs::absolute(*path, error).lexically_normal().string();
    while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
    *path = plain;
  }
  struct stat input {};
  if (stat(files.input.c_str(), &input) != 0) return errno_error("the input " + files.input.string(), errno);
  if (access(files.input.c_str(), R_OK) != 0) return errno_error("you cannot read " + files.input.string(), errno);
  const bool folder = S_ISDIR(input.st_mode);
  if (!folder && !S_ISREG(input.st_mode))
    return Error{Code::kInvalidArgument, "the input " + files.input.string() + " is neither a file nor a folder", ""};
  if (files.kind.empty()) {
    const std::string end = files.input.extension().string();
    files.kind = folder ? "files" : end == ".jsonl" || end == ".ndjson" ? "jsonl" : "text";
  }
  if (folder != (files.kind == "files")) {
    return Error{
        Code::kInvalidArgument,
        files.input.string() + " is a " + (folder ? "folder" : "file") + ", so its items are not " + files.kind,
        "leave --items out"};
  }
  const fs::path place = files.output.parent_path();
  if (access(place.c_str(), W_OK | X_OK) != 0)
    return errno_error("you cannot write into the output's folder " + place.string(), errno);
  if (files.output == files.input || (folder && place == files.input))
    return Error{Code::kInvalidArgument, "the output would lie in the input", "write it to another folder"};
  if (files.force) return {};
  for (const fs::path& there : {files.output, files.failed()}) {
    if (fs::exists(there, error))
      return Error{Code::kAlreadyExists, there.string() + " is there already", "another --output, or --force"};
  }
  if (fs::exists(files.folder(), error)) {
    return Error{Code::kAlreadyExists, "a batch that has not ended well has left " + files.folder().string(),
                 "see freeride-ctl batch ls; --force starts again"};
  }
  return {};
}

void remove_batch_folder(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

Result<uint64_t> make_batch_folder(const BatchFiles& files, const std::string& id) {
  const fs::path folder = files.folder();
  if (files.force) remove_batch_folder(folder);
  if (mkdir(folder.c_str(), 0700) != 0) return errno_error("cannot make the folder " + folder.string(), errno);
  auto items = fill(files, id);
  if (items && *items > 0) {
    // What an earlier batch has left is not to be taken for this one's.
    std::error_code ignored;
    if (files.force) fs::remove(files.output, ignored), fs::remove(files.failed(), ignored);
    return items;
  }
  remove_batch_folder(folder);
  if (items) {
    if (auto s = write_empty(files.output); !s) return s.error();
  }
  return items;
}

}  // namespace freeride::ctl
