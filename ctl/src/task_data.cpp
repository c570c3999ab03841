#include "task_data.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "copied_files.hpp"
#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/bus/commands.hpp"
#include "interrupt.hpp"
#include "json.hpp"

namespace freeride::ctl {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLook{500};  // a log is no event
constexpr int kDeepest = 64;

// Control characters of a task's are not the terminal's; lines and tabs are.
std::string for_people(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      shown += '?';
    } else {
      shown += c;
    }
  }
  return shown;
}

// A name of the task's choosing becomes one here: it must not lead anywhere.
bool is_safe(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

class Copy {
 public:
  Copy(Session& session, std::string task) : session_(session), task_(std::move(task)) {}
  const Copied& done() const { return done_; }

  Status take(const std::string& path, const fs::path& to, int depth) {
    if (interrupted()) return Error{Code::kUnavailable, "interrupted", ""};
    bus::ReadFile wish{task_, path, 0};
    std::string bytes;
    auto piece = ask(wish, bytes);
    if (!piece) return piece.error();
    if (piece->kind == "folder") return take_folder(wish, std::move(*piece), to, depth);
    return take_file(wish, std::move(*piece), std::move(bytes), to);
  }

 private:
  Result<bus::FileReply> ask(const bus::ReadFile& wish, std::string& bytes) {
    return session_.ask_attached<bus::FileReply>(wish, bytes);
  }

  Status take_folder(bus::ReadFile wish, bus::FileReply piece, const fs::path& to, int depth) {
    if (depth > kDeepest) return Error{Code::kInvalidArgument, to.string() + " is too deep to be copied", ""};
    if (auto made = make_folder(to); !made) return made;
    for (;;) {
      for (const bus::FileEntry& entry : piece.entries) {
        if (!is_safe(entry.name) || (entry.kind != "file" && entry.kind != "folder")) {
          ++done_.skipped;
          continue;
        }
        const std::string inner = wish.path.empty() ? entry.name : wish.path + "/" + entry.name;
        auto taken = take(inner, to / entry.name, depth + 1);
        // What a live task removes meanwhile is no failure of the rest.
        if (!taken && taken.error().code == Code::kNotFound) {
          ++done_.skipped;
        } else if (!taken) {
          return taken;
        }
      }
      if (!piece.more || piece.next == wish.offset) return {};
      if (interrupted()) return Error{Code::kUnavailable, "interrupted", ""};
      wish.offset = piece.next;
      std::string none;
      auto next = ask(wish, none);
      if (!next) return next.error();
      piece = std::move(*next);
    }
  }

  Status take_file(bus::ReadFile wish, bus::FileReply piece, std::string bytes, const fs::path& to) {
    auto part = PartFile::make(to, piece.executable);
    if (!part) return part.error();
    for (;;) {
      if (auto s = part->write(bytes); !s) return s;
      done_.bytes += bytes.size();
      if (!piece.more || bytes.empty()) break;
      if (interrupted()) return Error{Code::kUnavailable, "interrupted", ""};
      wish.offset = piece.next;
      auto next = ask(wish, bytes);
      if (!next) return next.error();
      piece = std::move(*next);
    }
    if (auto s = part->finish(); !s) return s;
    ++done_.files;
    return {};
  }

  Session& session_;
  const std::string task_;
  Copied done_;
};

struct Place {
  std::string granted, rest;
};

// "/out/x" where the task has --write /home/a/out:/out: "x" below "/home/a/out". Nothing: it was not given that.
std::optional<Place> granted(const bus::TaskInfo& task, const std::string& path) {
  for (const bus::FileGrant& file : task.load.files) {
    const std::string& at = file.target.empty() ? file.source : file.target;
    if (path == at) return Place{file.source, "."};
    if (path.rfind(at + "/", 0) == 0) return Place{file.source, path.substr(at.size() + 1)};
  }
  return std::nullopt;
}

Result<Copied> copy_here(const bus::TaskInfo& task, const Place& place, const fs::path& to) {
  const std::string host = task.state.worker.substr(0, task.state.worker.rfind(':'));
  if (!host.empty() && host != host_id()) {
    const std::string source = place.rest == "." ? place.granted : place.granted + "/" + place.rest;
    return Error{Code::kUnavailable, "that is " + source + " on " + host + ", where the task has written it",
                 "copy it there, e.g. scp " + host + ":" + source};
  }
  return copy_below(place.granted, place.rest, to);
}

void tell(Session& session, const Copied& done, const fs::path& to) {
  if (session.json()) {
    session.out() << dump(
                         {{"to", to.string()}, {"files", done.files}, {"bytes", done.bytes}, {"skipped", done.skipped}},
                         2)
                  << "\n";
    return;
  }
  session.out() << printable(to.string()) << ": " << done.files << (done.files == 1 ? " file, " : " files, ")
                << human_bytes(static_cast<int64_t>(done.bytes));
  if (done.skipped > 0) session.out() << "; " << done.skipped << " left out (links, and what went away)";
  session.out() << "\n";
}

}  // namespace

Result<bool> print_log(Session& session, const LogsArguments& arguments, int64_t offset) {
  bus::ReadLog wish{arguments.task, arguments.previous, offset};
  for (;;) {
    auto piece = session.ask<bus::LogReply>(wish);
    const bool nothing_yet = !piece && arguments.follow && !arguments.previous && piece.error().code == Code::kNotFound;
    if (!piece && !nothing_yet) return piece.error();
    if (nothing_yet) {
      // Not on a worker yet; one that is not there at all, or will not be any more, is told apart.
      const auto task = session.ask<bus::TaskReply>(bus::ShowTask{arguments.task});
      if (!task) return task.error();
      if (!task->task.state.verdict.kind.empty()) return piece.error();
    } else {
      if (session.json()) {
        if (!piece->text.empty()) session.out() << dump(to_json(*piece)) << "\n";
      } else {
        session.out() << for_people(piece->text);
      }
      session.out() << std::flush;
      const bool moved = piece->next != wish.offset;
      wish.offset = piece->next;
      if (moved && !piece->text.empty()) continue;  // perhaps there is more
      if (!arguments.follow || piece->ended) return piece->ended;
    }
    if (!pause_for(kLook)) return false;
  }
}

Result<int> run_logs(Session& session, const LogsArguments& arguments) {
  catch_interrupts();
  const auto printed = print_log(session, arguments, arguments.follow ? -1 : 0);
  if (!printed) return printed.error();
  return kExitOk;
}

Result<int> run_copy(Session& session, const CopyArguments& arguments) {
  const size_t colon = arguments.from.find(':');
  if (colon == arguments.from.npos || colon == 0)
    return Error{Code::kInvalidArgument, "'" + arguments.from + "' is not TASK:PATH", "e.g. mytask:results"};
  const std::string task = arguments.from.substr(0, colon);
  std::string path = fs::path(arguments.from.substr(colon + 1)).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path == ".") path.clear();
  std::error_code error;
  if (!fs::is_directory(arguments.to, error))
    return Error{Code::kNotFound, "there is no folder " + arguments.to, "make it"};
  const auto reply = session.ask<bus::TaskReply>(bus::ShowTask{task});
  if (!reply) return reply.error();
  if (path.rfind("/scratch", 0) == 0 && (path.size() == 8 || path[8] == '/'))
    path = path.size() <= 9 ? "" : path.substr(9);
  if (path.rfind("..", 0) == 0)
    return Error{Code::kInvalidArgument, "'" + path + "' leads out of the task's scratch folder", ""};
  const std::string name = path.empty() ? task : fs::path(path).filename().string();
  const fs::path to = fs::path(arguments.to) / name;
  catch_interrupts();
  if (!path.empty() && path[0] == '/') {
    const auto place = granted(reply->task, path);
    if (!place) {
      return Error{Code::kNotFound, "task " + task + " was not given " + path,
                   "its results are in its scratch folder (TASK:PATH without '/'), and where --write said"};
    }
    const auto copied = copy_here(reply->task, *place, to);
    if (!copied) return copied.error();
    tell(session, *copied, to);
    return kExitOk;
  }
  Copy copy(session, task);
  if (auto taken = copy.take(path, to, 0); !taken) return taken.error();
  tell(session, copy.done(), to);
  return kExitOk;
}

}  // namespace freeride::ctl
