#include "batch.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "batch_files.hpp"
#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/random.hpp"
#include "interrupt.hpp"
#include "json.hpp"

namespace freeride::ctl {
namespace {

using Time = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{500};  // the manager hears of members each second
constexpr std::chrono::seconds kLines{5};
constexpr size_t kBarWidth = 30;

// "score" of "./score.py".
std::string name_of(const std::string& plugin) {
  std::string name = plugin.substr(plugin.find_last_of('/', plugin.size() - 2) + 1);
  name = name.substr(0, name.find('.'));
  for (char& c : name) c = is_task_name_char(c) ? c : '-';
  name = name.substr(0, kMaxTaskName - 5);
  return is_task_name(name) ? name : "batch";
}

std::string progress(const bus::BatchInfo& info) {
  const uint64_t items = info.asked.items, handled = std::min(info.done + info.failed, items);
  std::string text = human_count(handled) + " of " + human_count(items) + " items";
  if (info.failed > 0) text += ", " + human_count(info.failed) + " failed";
  if (info.state != "running") return text + ", " + info.state;
  text += ", " + std::to_string(info.members) + (info.members == 1 ? " member" : " members");
  const std::string left = human_left(items - handled, info.items_per_s);
  if (left.empty()) return text + (handled == 0 ? ", waiting for a first result" : "");
  std::array<char, 32> rate{};
  std::snprintf(rate.data(), rate.size(), ", %.3g/s", info.items_per_s);
  return text + rate.data() + ", " + left + " left";
}

bool on_terminal(const Session& session) {
  const char* terminal = std::getenv("TERM");
  return !session.json() && isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string(terminal) != "dumb";
}

// A line that is written over on a terminal; elsewhere a line now and then.
class View {
 public:
  explicit View(Session& session) : session_(session), terminal_(on_terminal(session)) {}

  void show(const bus::BatchInfo& info) {
    const auto now = Time::now();
    const uint64_t handled = info.done + info.failed;
    const std::string text = progress(info);
    if (terminal_) {
      const double share = static_cast<double>(handled) / static_cast<double>(std::max<uint64_t>(info.asked.items, 1));
      session_.out() << "\r\033[K" << bar(share, kBarWidth, false) << " " << printable(text) << std::flush;
      open_ = true;
    } else if (session_.json() ? handled != said_ || info.state != state_ : now - shown_ >= kLines && text != text_) {
      session_.out() << (session_.json() ? dump(to_json(info)) : printable(info.name + ": " + text)) << "\n"
                     << std::flush;
      shown_ = now;
      text_ = text;
      said_ = handled;
      state_ = info.state;
    }
  }
  // Something else is printed now.
  void end_line() {
    if (open_) session_.out() << "\n";
    open_ = false;
  }

 private:
  Session& session_;
  bool terminal_, open_ = false;
  Time::time_point shown_{};
  std::string text_, state_;
  uint64_t said_ = UINT64_MAX;
};

Result<int> ended(Session& session, const bus::BatchInfo& info) {
  if (info.state == "failed") {
    return Error{Code::kInternal, "batch " + info.name + " has failed: " + info.reason,
                 "its " + info.asked.output + ".parts is kept; freeride-ctl batch rm " + info.name};
  }
  BatchFiles files;
  files.output = info.asked.output;
  const std::string failed =
      info.failed == 0 ? "" : "; " + human_count(info.failed) + " failed, see " + files.failed().string();
  if (!session.json()) {
    session.out() << printable(info.name + ": " + human_count(info.done) + " results in " + info.asked.output + failed)
                  << "\n";
  }
  return info.failed == 0 ? kExitOk : kExitFailed;
}

Result<int> follow(Session& session, const std::string& name) {
  catch_interrupts();
  View view(session);
  bool away = false;
  while (!interrupted()) {
    const auto reply = session.ask<bus::BatchReply>(bus::ShowBatch{name});
    if (reply) {
      away = false;
      view.show(reply->batch);
      if (reply->batch.ended_unix_ms != 0) {
        view.end_line();
        return ended(session, reply->batch);
      }
    } else if (interrupted()) {
      break;
    } else if (reply.error().code != Code::kUnavailable && reply.error().code != Code::kTimeout) {
      view.end_line();
      return reply.error();
    } else if (!away) {
      view.end_line();
      std::cerr << "freeride-ctl: " << printable(reply.error().message) << "; the batch continues when it is back\n";
      away = true;
    }
    pause_for(kLook);
  }
  view.end_line();
  std::cerr << "freeride-ctl: detached; it continues: freeride-ctl batch attach " << printable(name) << "\n";
  return kExitOk;
}

// `asked`: the manager may have taken it, whatever is returned.
Result<bus::BatchReply> submit(Session& session, const BatchArguments& arguments, const BatchFiles& files,
                               const std::string& id, uint64_t items, bool& asked) {
  std::string attachment;
  auto load = make_load(session, arguments.load, attachment);
  if (!load) return load.error();
  asked = true;
  load->name = arguments.load.name.empty() ? name_of(arguments.load.plugin) : arguments.load.name;
  load->files.push_back({files.input.string(), kBatchInput, false});
  load->files.push_back({files.output.parent_path().string(), kBatchOutput, true});
  load->params["batch"] = std::string(kBatchOutput) + "/" + files.folder().filename().string();
  bus::SubmitBatch wish;
  wish.load = std::move(*load);
  wish.id = id;
  wish.items = items;
  wish.tries = arguments.retries;
  wish.input = files.input.string();
  wish.output = files.output.string();
  return session.ask<bus::BatchReply>(wish, std::move(attachment));
}

}  // namespace

Result<int> run_batch(Session& session, BatchArguments arguments) {
  if (arguments.input.empty() || arguments.output.empty() || arguments.load.plugin.empty()) {
    return Error{Code::kInvalidArgument, "a batch needs a plugin, --input and --output",
                 "freeride-ctl batch ./score.py --input prompts.jsonl --output scores.jsonl"};
  }
  // Here a path is what is meant: a list of items comes with a file of one's own.
  std::string& plugin = arguments.load.plugin;
  if (plugin.find('/') == plugin.npos && access(plugin.c_str(), R_OK) == 0) plugin.insert(0, "./");
  BatchFiles files;
  files.input = arguments.input;
  files.output = arguments.output;
  files.kind = arguments.items;
  files.tries = arguments.retries;
  files.in_order = arguments.in_order;
  files.force = arguments.force;
  if (auto s = check_batch_files(files); !s) return s.error();
  // Before anything is made: of an output that a batch writes just now nothing is touched.
  const auto batches = session.ask<bus::BatchesReply>(bus::ListBatches{});
  if (!batches) return batches.error();
  for (const bus::BatchInfo& other : batches->batches) {
    if (other.ended_unix_ms == 0 && other.asked.output == files.output.string())
      return Error{Code::kAlreadyExists, "batch " + other.name + " is writing " + other.asked.output,
                   "freeride-ctl batch attach " + other.name};
  }
  const std::string id = random_hex() + random_hex();
  const auto items = make_batch_folder(files, id);
  if (!items) return items.error();
  if (*items == 0) {
    if (!session.json()) session.out() << printable("no items: " + files.output.string() + " is empty") << "\n";
    return kExitOk;
  }
  bool asked = false;
  auto reply = submit(session, arguments, files, id, *items, asked);
  if (!reply && use_shipped_plugin(reply.error(), arguments.load))
    reply = submit(session, arguments, files, id, *items, asked);
  if (!reply) {
    // One that may have been taken after all keeps its files: only the manager's own word says that it was not.
    static constexpr std::array kRefused = {Code::kInvalidArgument, Code::kPermission, Code::kAlreadyExists,
                                            Code::kExhausted,       Code::kRejected,   Code::kNotFound};
    const Code code = reply.error().code;
    if (!asked || std::find(kRefused.begin(), kRefused.end(), code) != kRefused.end())
      remove_batch_folder(files.folder());
    return reply.error();
  }
  if (!arguments.detach) return follow(session, reply->batch.name);
  session.out() << (session.json() ? dump(to_json(*reply), 2) : printable("batch " + reply->batch.name)) << "\n";
  return kExitOk;
}

Result<int> run_batch_attach(Session& session, const std::string& name) {
  return follow(session, name);
}

Result<int> run_batch_ls(Session& session) {
  const auto reply = session.ask<bus::BatchesReply>(bus::ListBatches{});
  if (!reply) return reply.error();
  Table table({"BATCH",
               "STATE",
               {">DONE", "done"},
               {">FAILED", "failed"},
               {">ITEMS", "items"},
               {">MEMBERS", "members"},
               "OUTPUT",
               {"REASON", "reason", 1}});
  for (const bus::BatchInfo& info : reply->batches) {
    table.add({info.name, info.state, count_cell(info.done), count_cell(info.failed), count_cell(info.asked.items),
               count_cell(info.members), info.asked.output, or_dash(info.reason)});
  }
  return session.print(to_json(*reply), {std::move(table), "no batches\n", ""});
}

Result<int> run_batch_rm(Session& session, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto reply = session.ask<bus::BatchReply>(bus::RemoveBatch{name});
    if (!reply) return reply.error();
    if (session.json()) {
      session.out() << dump(to_json(*reply), 2) << "\n";
      continue;
    }
    const bool parts = reply->batch.state != "finished";
    session.out() << printable("removed: " + name +
                               (parts ? "; what it has done is in " + reply->batch.asked.output + ".parts" : ""))
                  << "\n";
  }
  return kExitOk;
}

}  // namespace freeride::ctl
