// Placer: placement of many tasks over one snapshot of the devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/policy/placement.hpp"

namespace freeride::policy {

/// Answers as place() and check_request(), of which it is the one implementation. The first request of a kind sorts the
/// devices that it may use, by their numbers of tasks. Later ones look at one device for each such number, instead of
/// at all devices. A plain value; not thread-safe.
class Placer {
 public:
  /// `attached`: jobs that a request's name may mean although their devices are not among these. A request that means
  /// one of them waits, and is not placed on another user's job of that name.
  explicit Placer(std::vector<DeviceView> devices, std::vector<std::string> attached = {});
  Placer(const Placer&) = delete;
  Placer& operator=(const Placer&) = delete;

  Placement place(const PlacementRequest& request);
  Status check(const PlacementRequest& request) const;
  /// So much memory has been promised there, to so many more tasks (0: to a profile).
  void put(const std::string& worker, int64_t bytes, uint32_t tasks = 1);
  /// That is free there now, and so many tasks are. Its memory and its ranks are as they were.
  void set(const std::string& worker, int64_t free_bytes, uint32_t tasks);

  const std::vector<DeviceView>& devices() const { return devices_; }
  const std::vector<std::string>& jobs() const { return jobs_; }  ///< that names may mean, sorted
  uint64_t looks() const { return looks_; }                       ///< devices looked at so far, by all calls

 private:
  // Fewest tasks first, then the most free memory, then the first by name.
  using Place = std::tuple<uint32_t, int64_t, size_t>;  // tasks, -free, device
  struct Group {
    std::set<Place> open;           // those that may be placed on
    std::optional<size_t> largest;  // of these
    std::optional<uint32_t> off;    // the stage of one whose hook is off
    std::optional<size_t> in_use;   // one without a rank that a process uses all the same
  };
  struct Shape {
    uint32_t stages = 0, replicas = 0;
    std::vector<size_t> devices;
  };
  using Wish = std::tuple<std::string, int32_t, int32_t>;  // job, stage, replica

  Group& group_of(const Wish& wish);
  Group& idle();
  void add(Group& group, size_t device);
  std::optional<size_t> device_of(const std::string& worker) const;
  void change(size_t device, int64_t free_bytes, uint32_t tasks);
  Place place_of(size_t device) const;
  std::optional<Place> best_of(const Group& group, int64_t bytes);
  std::optional<Place> where_it_was(const PlacementRequest& request, const std::vector<Group*>& groups, uint32_t tasks);
  Placement pick(const PlacementRequest& request, const std::vector<Group*>& groups);
  std::optional<std::string> missing_part(const PlacementRequest& request, const std::string& job) const;

  std::vector<DeviceView> devices_;  // by name
  std::vector<std::string> jobs_;
  std::map<std::string, Shape> shapes_;  // by job
  std::map<Wish, Group> groups_;
  std::optional<Group> idle_;
  std::vector<std::vector<Group*>> groups_of_;  // by device
  std::optional<size_t> largest_;
  uint64_t looks_ = 0;
};

}  // namespace freeride::policy
