// Drains: the devices that side tasks are kept off, until somebody gives them back.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "jobs.hpp"
#include "outside.hpp"
#include "state_store.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// What is drained stands on the disk before any worker hears of it. A worker is drained while its name, its host or
/// the job of a rank on it is; Worker::drain then has the number of the latest of these orders. One thread; blocks on
/// the disk.
class Drains {
 public:
  /// `most`: things that are drained at once.
  Drains(StateStore& store, Outside& outside, Workers& workers, const Jobs& jobs, size_t most)
      : store_(store), outside_(outside), workers_(workers), jobs_(jobs), most_(most) {}
  /// Errors: the store's.
  Status restore();

  /// `unix_ms`: the wall clock, so that numbers grow over a lost state file, too. Answered at once, with how far it is.
  void drain(Ticket ticket, const bus::Drain& wish, int64_t unix_ms);
  void uncordon(Ticket ticket, const std::string& subject);
  /// Sets what the worker is told. Whenever it registers or reports, since its ranks may be others.
  void look_at(Worker& worker);

 private:
  using Key = std::pair<std::string, std::string>;  // scope and name
  Result<Key> meant(const std::string& subject, bool drained_only) const;
  bool is_of(const Worker& worker, const Key& key) const;
  bus::DrainReply reply_of(const Key& key) const;
  void look_at_all();

  StateStore& store_;
  Outside& outside_;
  Workers& workers_;
  const Jobs& jobs_;
  size_t most_;
  std::map<Key, uint64_t> drained_;  // number of the order
};

}  // namespace freeride::manager
