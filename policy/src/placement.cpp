#include "freeride/policy/placement.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include "freeride/base/names.hpp"
#include "freeride/policy/placer.hpp"

namespace freeride::policy {

std::vector<std::string> attached_jobs(const std::vector<DeviceView>& devices) {
  std::set<std::string> jobs;
  for (const auto& device : devices) {
    for (const auto& rank : device.ranks) jobs.insert(rank.job);
  }
  return {jobs.begin(), jobs.end()};
}

std::vector<std::string> meant_jobs(const std::string& wanted, const std::vector<std::string>& jobs) {
  if (wanted.empty()) return jobs;
  if (std::find(jobs.begin(), jobs.end(), wanted) != jobs.end()) return {wanted};
  std::vector<std::string> meant;
  std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(meant),
               [&](const std::string& job) { return means_job(wanted, job); });
  return meant;
}

Placement place(const PlacementRequest& request, const std::vector<DeviceView>& devices) {
  return Placer(devices).place(request);
}

Status check_request(const PlacementRequest& request, const std::vector<DeviceView>& devices) {
  return Placer(devices).check(request);
}

}  // namespace freeride::policy
