// The gate: which connections libzmq takes and makes in this process. libzmq ends the process when accept() finds no
// descriptor left, and asks nobody who listens where it connects; both are calls that the linker finds, and it finds
// the ones in gate.cpp.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace freeride::bus::detail {

/// One for the process. Of sockets that it was not told about it knows nothing. All calls: any thread, no waiting.
class Gate {
 public:
  /// Connections of all users but root and ours together, and of one of these; of one address of the network. How many
  /// there are of all endpoints, and of the network, is in Bounds. Less when the process has few descriptors: the last
  /// kReserve are never a connection's.
  static constexpr size_t kMostOfStrangers = 512, kMostOfOne = 32;
  static constexpr size_t kMostOfAddress = 32;
  static constexpr int kReserve = 64;
  /// A subscriber whose socket was full at so many looks in a row does not read: its connection is closed. Who reads in
  /// batches, the recorder does, has a full socket before each of them, so looks have to be closer than batches.
  static constexpr int kMostFullLooks = 50;

  static Gate& instance();

  /// From now on the connections that the listening socket `fd` of `endpoint` takes are counted.
  void guard(int fd, const std::string& endpoint);
  void forget(const std::string& endpoint);  ///< its listeners and their connections
  void forget(int listener);
  /// From now on `path` is only connected to where base's check_run_folder() and check_listener() allow it.
  void check(const std::string& path);

  /// Closes the connections of `endpoint` for which `keep` (asked by descriptor) says false; returns how many.
  size_t hang_up_unless(const std::string& endpoint, const std::function<bool(int)>& keep);
  /// Looks at the connections of `endpoint`, or only at those that were full when last looked at; closes those that do
  /// not read, and returns how many.
  enum class Look { kAll, kFull };
  size_t drop_unread(const std::string& endpoint, Look look = Look::kAll);
  /// Closes the connection `fd` if it is one of `endpoint`. False: it is not.
  bool hang_up(int fd, const std::string& endpoint);

  // What accept() and connect() ask.
  bool guards(int listener);
  bool admit(int listener, int fd);
  bool checks(const std::string& path);

 private:
  struct Connection {
    std::string endpoint;
    std::string who;  // "uid 1000", or an address of the network
    enum class Kind { kTrusted, kStranger, kNetwork } kind = Kind::kStranger;
    ino_t socket = 0;  ///< which socket it was when it came: a descriptor's number is given again
    int full_looks = 0;
  };

  static bool identify(int fd, Connection& connection);
  size_t count(const std::string& who) const;
  size_t count(Connection::Kind kind) const;
  void prune(int64_t now_ns);
  static void refused(const std::string& who, const std::string& endpoint, const char* why);
  static bool shut(int fd, ino_t socket);

  std::mutex mutex_;
  std::map<int, std::string> listeners_;
  std::map<int, Connection> connections_;  // by descriptor; those that libzmq has closed go when there is no room
  std::set<std::string> checked_;
  int64_t pruned_ns_ = 0;
};

/// The C library's connect(), for looking at who listens at a path that is checked.
int connect_unchecked(int fd, const sockaddr* address, socklen_t size);

}  // namespace freeride::bus::detail
