// Trainers: the socket at which training ranks hand in their bubble pages, and the ranks that have.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "acting/acting_thread.hpp"
#include "daemon/hello_reader.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/pages/mapping.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {

/// A rank whose page is accepted. Its connection is its life: the end of file is its end.
struct AttachedRank {
  uint64_t id = 0;
  pages::BubbleIdentity identity;  ///< its job is what it is called outside of this program: base's job_of()
  std::shared_ptr<const RankSource> source;
  Peer peer;
  bool stranger = false;  ///< neither root's nor this program's user's
  int absent_looks = 0;   ///< of a stranger: looks in a row that did not find it on the device
};

/// Main thread. Root and this program's own user are believed. Where this program is root's, anybody else may come too,
/// as a *stranger*: only a process that the host sees on the device, as long as it is there, under a job of its own
/// user's; and all strangers, and each user among them, have a bounded part of what there is. Whatever is sent here
/// costs a bounded amount of time, memory and descriptors.
class Trainers {
 public:
  /// Of 64 connections: all strangers', and one user's of them.
  static constexpr size_t kMostConnections = 64, kMostOfStrangers = 48, kMostOfOne = 8;

  enum class Change { kAttached, kLost };
  /// kLost: the connection has ended; the page tells whether in good order.
  using Listener = std::function<void(const AttachedRank&, Change)>;
  /// Whether the host sees process `pid` on the device now. Errors: kPermission (it is not there: the text is for its
  /// user), kUnavailable (nobody can tell at the moment).
  using OnDevice = std::function<Status(pid_t pid)>;

  /// Listens at `path`. Errors: kAlreadyExists (another worker of this device), kPermission, kInvalidArgument.
  static Result<std::unique_ptr<Trainers>> listen(const std::string& path, const std::string& device, Loop& loop,
                                                  ActingThread& acting, OnDevice on_device, Listener listener);
  ~Trainers();

  /// Makes the socket's name anew, and its folder, if somebody has removed them; ranks that are attached stay so. A
  /// look at the file system. What keeps it from that is logged once.
  void keep_listening();

  /// Looks whether strangers' processes are still on the device, and lets go of those that are not. About once a
  /// second.
  void look_at_strangers();

  const std::map<uint64_t, AttachedRank>& ranks() const { return ranks_; }
  /// Memory that ranks say they were refused just now, bytes; a claim. A stranger's counts while `here` says that its
  /// process is on the device.
  int64_t wanted_bytes(const std::function<bool(pid_t)>& here) const;

 private:
  struct Connection {
    Fd socket;
    Peer peer;
    bool stranger = false;
    Loop::Timer patience = 0;
    std::unique_ptr<HelloReader> reader;  // of a stranger's hello
    uint64_t rank = 0;                    // 0: no hello yet
  };
  /// A user who is not trusted.
  struct Stranger {
    int64_t said_ns = 0;  // its last refusal that was logged
    std::string said;
    int64_t since_ns = 0;  // its hellos since then
    int hellos = 0;
  };
  Trainers(std::string path, std::string device, Loop& loop, ActingThread& acting, OnDevice on_device,
           Listener listener);
  Status open_socket();
  void on_connection();
  Status check_room(const Peer& peer, bool stranger) const;
  Status check_stranger(const Peer& peer) const;
  Stranger& stranger(uid_t uid);
  void on_readable(int fd);
  Status read_apart(int fd);
  void on_hello(int fd, Result<pages::Hello> hello);
  int bell_for(uid_t uid);
  Result<AttachedRank> accept_page(const Connection& connection, const pages::Hello& hello);
  void turn_away(int fd, const Error& error);
  void log_refusal(const Peer& peer, bool stranger, const std::string& text);
  void refuse(int fd, const Error& error);
  void drop(int fd);

  const std::string path_, device_;
  Loop& loop_;
  ActingThread& acting_;
  OnDevice on_device_;
  Listener listener_;
  Fd socket_;
  bool failure_said_ = false;
  std::map<int, Connection> connections_;
  std::map<uint64_t, AttachedRank> ranks_;
  std::map<uid_t, Stranger> strangers_;
  // Processes that read a user's hellos and have not ended; some may outlive this.
  std::shared_ptr<std::map<uid_t, size_t>> readers_ = std::make_shared<std::map<uid_t, size_t>>();
  uid_t bell_user_ = geteuid();  // whose hooks ring the acting thread's bell
  uint64_t last_id_ = 0;
};

}  // namespace freeride::worker
