#include "contents.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "freeride/base/files.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/sha256.hpp"
#include "freeride/policy/permission.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kPatience = 5 * kNsPerSec;
constexpr size_t kMostTaken = 4 * kMaxPluginBytes;  // at once
constexpr int64_t kRestoredPatience = 24 * 3600 * kNsPerSec;
// Of what comes in pieces: until the next piece, and until the command that names it.
constexpr int64_t kComingPatience = 60 * kNsPerSec;
constexpr size_t kMostOfOne = 2 * kMaxPluginBytes;
constexpr size_t kMostContentsOfOne = 16;  // that come at once

Error invalid(std::string message, std::string hint = {}) {
  return {Code::kInvalidArgument, std::move(message), std::move(hint)};
}

// What a job counts as: of a file that is only named nobody knows yet how long it is.
size_t counted(size_t sent_bytes) {
  return sent_bytes == 0 ? kMaxPluginBytes : sent_bytes;
}

// This process's memory is bounded, and contents are large.
template <class Work>
Contents::Job unfailing(Work work) {
  return [work = std::make_shared<Work>(std::move(work))]() -> Result<std::string> {
    try {
      return (*work)();
    } catch (const std::bad_alloc&) {
      return Error{Code::kExhausted, "the manager has no memory left for a plugin", "try again"};
    }
  };
}

// What is not as it was announced does not come into the store: nobody would let it go.
Result<std::string> put(PluginStore& store, const std::string& bytes, const std::string& name,
                        const std::string& wanted) {
  if (!wanted.empty() && sha256_hex(bytes) != wanted)
    return invalid("the plugin's bytes do not match the SHA-256 given");
  return store.put(bytes, name);
}

}  // namespace

// Whatever lies in the store and nobody turns out to need is dropped, once workers have had the time to come back and
// somebody the time to notice that the state file is an older one.
Contents::Contents(const Paths& paths, const Clock& clock, const TaskBook& tasks, const Workers& workers,
                   const ProfileRuns& runs)
    : paths_(paths), store_(paths.store_dir()), clock_(clock), tasks_(tasks), workers_(workers), runs_(runs) {
  for (const std::string& sha256 : store_.list()) released_[sha256] = clock.now_ns() + kRestoredPatience;
}

Result<Contents::Job> Contents::taking(const bus::Load& load, std::string attachment) {
  const bool named = attachment.empty() && load.sha256.empty() && load.program.empty() && !load.plugin.empty() &&
                     load.plugin.find('/') == std::string::npos && !reported_here(load.plugin);
  if (attachment.empty() && !named) return Job();
  if (!load.program.empty()) return invalid("a load is of a program or of a plugin, not of both");
  if (jobs_bytes_ + counted(attachment.size()) > kMostTaken)
    return Error{Code::kExhausted, "the manager is taking in other plugins", "try again"};
  ++jobs_;
  jobs_bytes_ += counted(attachment.size());
  const std::filesystem::path file = named ? paths_.drop_dir() / load.plugin : std::filesystem::path();
  const std::string name = load.plugin.empty() ? "the plugin" : load.plugin;
  return unfailing([store = store_, file, name, wanted = load.sha256, bytes = std::move(attachment)]() mutable {
    if (!file.empty()) {
      auto read = read_file(file, kMaxPluginBytes);
      if (!read) return Result<std::string>(std::string());  // resolve() says what there is
      bytes = std::move(*read);
    }
    return put(store, bytes, name, wanted);
  });
}

// Where nobody wants it after all it goes again.
void Contents::taken(const std::string& sha256, size_t bytes) {
  --jobs_;
  jobs_bytes_ -= counted(bytes);
  release(sha256);
}

Result<std::string> Contents::resolve(const bus::Load& load) {
  if (!load.program.empty()) {
    if (!load.sha256.empty()) return invalid("a load is of a program or of a plugin, not of both");
    std::string words;
    for (const std::string& word : load.program) words.append(word).push_back('\0');
    return sha256_hex(words);
  }
  if (!load.sha256.empty()) {
    if (!is_sha256(load.sha256)) return invalid(in_quotes(load.sha256) + " is not a SHA-256");
    if (store_.has(load.sha256)) return load.sha256;
    for (const auto& [name, worker] : workers_.all()) {
      if (worker.up() && worker.has_content(load.sha256)) return load.sha256;
    }
    return Error{Code::kNotFound, "no plugin with SHA-256 " + load.sha256 + " is known", "load it from a path"};
  }
  if (load.plugin.empty())
    return invalid("no plugin is named", "give a path, or the name of a file in the drop folder");
  if (load.plugin.find('/') != std::string::npos) {
    return invalid("the plugin " + in_quotes(load.plugin) + " came without its content",
                   "freeride-ctl sends it along for a path");
  }
  if (auto known = reported_here(load.plugin)) return *known;
  return not_dropped(load.plugin);
}

Status Contents::room_for(const std::string& account, size_t bytes) const {
  size_t all = jobs_bytes_ + bytes, of_one = bytes, contents = 0;
  for (const auto& [key, coming] : coming_) {
    all += coming.bytes.size();
    if (key.first != account) continue;
    of_one += coming.bytes.size();
    ++contents;
  }
  if (of_one > kMostOfOne || contents > kMostContentsOfOne)
    return Error{Code::kExhausted, "too many plugins of yours are on their way", "try again when they are there"};
  if (all > kMostTaken) return Error{Code::kExhausted, "too many plugins are on their way", "try again in a minute"};
  return {};
}

Result<Contents::Received> Contents::receive(const std::string& account, const bus::WritePlugin& wish,
                                             const std::string& piece) {
  if (!is_sha256(wish.sha256)) return invalid(in_quotes(wish.sha256) + " is not a SHA-256");
  if (wish.bytes == 0 || wish.bytes > kMaxPluginBytes)
    return invalid("a plugin has at most " + std::to_string(kMaxPluginBytes >> 20) + " MiB, and at least a byte");
  const auto key = std::pair(account, wish.sha256);
  if (store_.has(wish.sha256)) {
    coming_.erase(key);
    linger(wish.sha256);
    return Received{wish.bytes, {}};
  }
  const auto found = coming_.find(key);
  const uint64_t there = found == coming_.end() ? 0 : found->second.bytes.size();
  if (piece.empty() || wish.offset != there) return Received{there, {}};
  if (there > wish.bytes || piece.size() > wish.bytes - there)
    return invalid("a piece is longer than what is left of the plugin");
  Coming& coming = coming_[key];
  if (auto room = room_for(account, piece.size()); !room) {
    if (coming.bytes.empty()) coming_.erase(key);
    return room.error();
  }
  coming.bytes += piece;
  coming.heard_ns = clock_.now_ns();
  if (coming.bytes.size() < wish.bytes) return Received{coming.bytes.size(), {}};
  ++jobs_;
  jobs_bytes_ += wish.bytes;
  Job kept = unfailing([store = store_, wanted = wish.sha256, bytes = std::move(coming.bytes)]() mutable {
    return put(store, bytes, "the content" + std::string(plugin_extension(bytes)), wanted);
  });
  coming_.erase(key);
  return Received{wish.bytes, std::move(kept)};
}

void Contents::received(const bus::WritePlugin& wish) {
  --jobs_;
  jobs_bytes_ -= wish.bytes;
  linger(wish.sha256);
}

Contents::Job Contents::piece(const bus::FetchPlugin& wish) const {
  return unfailing([store = store_, wish] {
    return store.read_piece(wish.sha256, wish.offset, wish.most == 0 ? UINT64_MAX : wish.most);
  });
}

Error Contents::explained(const bus::FetchPlugin& wish, const Error& error) const {
  if (error.code != Code::kNotFound) return error;
  for (const auto& [name, worker] : workers_.all()) {
    const std::string host(policy::host_of_worker(name));
    for (const auto& [file, plugin] : worker.plugins) {
      if (plugin.state == "rejected" || plugin.sha256 != wish.sha256) continue;
      return Error{Code::kNotFound,
                   "the plugin " + in_quotes(file) + " is in the drop folder of host " + host + " alone",
                   "freeride-ctl load " + host + ":" + file + " loads it on other hosts"};
    }
  }
  return error;
}

// What workers of this host say of it. Nothing: none has it.
std::optional<Result<std::string>> Contents::reported_here(const std::string& file_name) const {
  std::optional<Result<std::string>> rejected;
  for (const auto& [name, worker] : workers_.all()) {
    const auto found = worker.plugins.find(file_name);
    if (!worker.up() || !worker.here || found == worker.plugins.end()) continue;
    const bus::PluginState& plugin = found->second;
    if (plugin.state == "rejected") {
      rejected = Error{Code::kRejected, "plugin " + file_name + " was rejected: " + plugin.reason,
                       "correct the file and drop it again"};
    } else if (is_sha256(plugin.sha256)) {
      return plugin.sha256;
    }
  }
  return rejected;
}

Error Contents::not_dropped(const std::string& file_name) const {
  std::vector<std::string> known, hosts;
  for (const auto& [name, worker] : workers_.all()) {
    for (const auto& [file, plugin] : worker.plugins) {
      if (!worker.up() || plugin.state == "rejected") continue;
      if (worker.here) known.push_back(file);
      if (!worker.here && file == file_name) hosts.emplace_back(policy::host_of_worker(name));
    }
  }
  const std::string what =
      "there is no plugin " + in_quotes(file_name) + " in the drop folder " + paths_.drop_dir().string();
  if (!hosts.empty()) {
    return Error{Code::kNotFound, what + " of the manager's host, but one on host " + hosts.front(),
                 "freeride-ctl load " + hosts.front() + ":" + file_name + " loads that one, on whatever host"};
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  return Error{Code::kNotFound, what + (known.empty() ? "" : "; there are: " + join(known)),
               "drop the file there, or give a path (anything with a '/')"};
}

bool Contents::needed(const std::string& sha256) const {
  if (kept_.count(sha256) != 0) return true;
  for (const auto& [name, task] : tasks_.live()) {
    if (task->state().sha256 == sha256) return true;
    if (task->replacing() && task->row.info.replacement.load.sha256 == sha256) return true;
  }
  const auto& runs = runs_.all();
  if (std::any_of(runs.begin(), runs.end(), [&](const auto& r) { return r.second.sha256 == sha256; })) return true;
  const auto& workers = workers_.all();
  return std::any_of(workers.begin(), workers.end(), [&](const auto& entry) {
    const auto& copies = entry.second.tasks;  // also of tasks that there is no record of
    if (std::any_of(copies.begin(), copies.end(), [&](const auto& c) { return c.second.sha256 == sha256; }))
      return true;
    const auto& plugins = entry.second.plugins;
    return std::any_of(plugins.begin(), plugins.end(), [&](const auto& p) { return p.second.sha256 == sha256; });
  });
}

void Contents::release(const std::string& sha256) {
  if (sha256.empty()) return;
  int64_t& until = released_[sha256];
  until = std::max(until, clock_.now_ns() + kPatience);
}

void Contents::let_go(const std::string& sha256) {
  if (const auto one = kept_.find(sha256); one != kept_.end()) kept_.erase(one);
  release(sha256);
}

// For the command that follows.
void Contents::linger(const std::string& sha256) {
  int64_t& until = released_[sha256];
  until = std::max(until, clock_.now_ns() + kComingPatience);
}

void Contents::drop_unneeded(int64_t now) {
  std::erase_if(coming_, [&](const auto& entry) { return now - entry.second.heard_ns > kComingPatience; });
  if (jobs_ > 0) return;  // one of these may just be found there
  for (auto it = released_.begin(); it != released_.end();) {
    if (it->second > now) {
      ++it;
      continue;
    }
    if (!needed(it->first)) store_.remove(it->first);
    it = released_.erase(it);
  }
}

}  // namespace freeride::manager
