#include "profile_book.hpp"

#include <algorithm>
#include <vector>

#include "freeride/base/sha256.hpp"
#include "freeride/bus/codec.hpp"
#include "profile_check.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr size_t kMaxImport = 1024;
constexpr size_t kMaxListBytes = 12 << 20;  // of a message's 16 MiB

}  // namespace

Status ProfileBook::restore() {
  return take(profiles_, store_.profiles());
}

// Every part with its length, so that no two lists of parts give the same text.
std::string ProfileBook::key_of(const std::string& sha256, const std::map<std::string, std::string>& params,
                                const std::string& model) {
  std::string text;
  const auto add = [&](const std::string& part) { text += std::to_string(part.size()) + ":" + part; };
  add(sha256);
  add(model);
  for (const auto& [key, value] : params) add(key), add(value);
  return sha256_hex(text);
}

std::map<std::string, std::string> ProfileBook::scope_of(const bus::Load& load) {
  auto scope = load.params;
  if (load.files.empty() && load.env.empty() && load.working_dir.empty()) return scope;
  std::map<std::string, std::string> parts{{"dir", load.working_dir}};
  if (!load.files.empty()) parts["as"] = std::to_string(load.uid) + "@" + load.uid_host;
  for (const auto& [name, value] : load.env) parts["env " + name] = value;
  for (const auto& file : load.files) parts["at " + file.target] = (file.write ? "w" : "r") + file.source;
  scope["\nfiles"] = key_of({}, parts, {});  // no parameter's name
  return scope;
}

const bus::Profile* ProfileBook::find(const std::string& key) const {
  const auto found = profiles_.find(key);
  return found == profiles_.end() ? nullptr : &found->second;
}

const bus::Profile* ProfileBook::find(const Task& task, const std::string& model) const {
  std::string& key = task.profile_keys[model];
  if (key.empty()) key = key_of(task.state().sha256, scope_of(task.load()), model);
  return find(key);
}

void ProfileBook::keep(const std::string& key, const bus::Profile& profile) {
  profiles_[key] = profile;
  if (auto saved = store_.save_profiles({{key, profile}}); !saved) trouble_.say(saved.error());
  while (profiles_.size() > kMax) {
    const auto oldest = std::min_element(profiles_.begin(), profiles_.end(), [](const auto& a, const auto& b) {
      return a.second.taken_unix_ms < b.second.taken_unix_ms;
    });
    if (auto removed = store_.remove_profile(oldest->first); !removed) return trouble_.say(removed.error());
    profiles_.erase(oldest);
  }
}

bus::ProfilesReply ProfileBook::list(const bus::ListProfiles& wish) const {
  std::vector<const bus::Profile*> found;
  for (const auto& [key, profile] : profiles_) {
    if (profile.sha256.empty() || (!wish.plugin.empty() && profile.plugin != wish.plugin)) continue;
    found.push_back(&profile);
  }
  std::sort(found.begin(), found.end(),
            [](const auto* a, const auto* b) { return a->taken_unix_ms > b->taken_unix_ms; });
  bus::ProfilesReply reply;
  size_t bytes = 0;
  for (const bus::Profile* profile : found) {
    bus::Profile one = *profile;
    if (!wish.whole) {
      one.step_ns.clear();
      one.memory_t_ns.clear();
      one.host_bytes.clear();
      one.gpu_bytes.clear();
    }
    bytes += bus::encode(one).size();
    if (bytes > kMaxListBytes) {
      ++reply.left_out;
    } else {
      reply.profiles.push_back(std::move(one));
    }
  }
  return reply;
}

Result<bus::ImportReply> ProfileBook::import(const bus::ImportProfiles& wish) {
  const auto refuse = [](std::string message) {
    return Error{Code::kInvalidArgument, std::move(message), "nothing was imported"};
  };
  if (wish.profiles.size() > kMaxImport) return refuse("more than 1024 profiles");
  bus::ImportReply reply;
  std::map<std::string, bus::Profile> taken;
  for (size_t i = 0; i < wish.profiles.size(); ++i) {
    const bus::Profile& profile = wish.profiles[i];
    if (auto checked = check_profile(profile); !checked) {
      return refuse("profile " + std::to_string(i + 1) + " of " + std::to_string(wish.profiles.size()) + " (" +
                    in_quotes(profile.plugin) + ") makes no sense: " + checked.error().message);
    }
    const std::string key = key_of(profile.sha256, profile.params, profile.device_model);
    const auto there = taken.find(key);
    const bus::Profile* before = there != taken.end() ? &there->second : find(key);
    if (before != nullptr && before->taken_unix_ms >= profile.taken_unix_ms && !before->sha256.empty()) {
      ++reply.older;
      continue;
    }
    ++(before == nullptr ? reply.added : reply.replaced);
    taken[key] = profile;
  }
  if (profiles_.size() + reply.added > kMax)
    return Error{Code::kExhausted, "there would be more than 1024 profiles", "nothing was imported"};
  if (auto saved = store_.save_profiles(taken); !saved) {
    trouble_.say(saved.error());
    return saved.error();
  }
  for (auto& [key, profile] : taken) profiles_[key] = std::move(profile);
  return reply;
}

}  // namespace freeride::manager
