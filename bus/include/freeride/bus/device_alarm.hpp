// What a side task says of its device; as the types in events.hpp.
#pragma once

#include "freeride/bus/events.hpp"

namespace freeride::bus {

/// A side task says that its device is not as it should be: the word of its plugin, upon which nothing acts. Published
/// by the worker.
struct DeviceAlarm {
  static constexpr const char* kTopic = "device.alarm";
  std::string worker, device;
  std::string serial;   ///< the GPU's serial number, by the driver; empty: none is known
  std::string task;     ///< that says so
  int64_t uid = -1;     ///< whose task it is, as in Load
  std::string alarm;    ///< "wrong", "slow", …: the metric's name behind "alarm."
  uint64_t count = 0;   ///< the metric
  uint64_t rise = 0;    ///< since the last event of it
  std::string job;      ///< attached there; empty: none
  int64_t time_ns = 0;  ///< when the worker saw it; CLOCK_MONOTONIC of its host
  FREERIDE_FIELDS {
    visit("worker", self.worker), visit("device", self.device), visit("serial", self.serial), visit("task", self.task);
    visit("uid", self.uid), visit("alarm", self.alarm), visit("count", self.count), visit("rise", self.rise);
    visit("job", self.job), visit("time_ns", self.time_ns);
  }
  std::string key() const { return worker; }
};

}  // namespace freeride::bus
