#include "profile_book.hpp"

#include <algorithm>
#include <vector>

#include "freeride/base/sha256.hpp"
#include "freeride/bus/codec.hpp"

namespace freeride::manager {
namespace {

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
    one.step_ns.clear();
    one.memory_t_ns.clear();
    one.host_bytes.clear();
    one.gpu_bytes.clear();
    bytes += bus::encode(one).size();
    if (bytes > kMaxListBytes) {
      ++reply.left_out;
    } else {
      reply.profiles.push_back(std::move(one));
    }
  }
  return reply;
}

}  // namespace freeride::manager
