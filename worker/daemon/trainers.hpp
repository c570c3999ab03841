// Trainers: the socket at which training ranks hand in their bubble pages, and the ranks that have.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "acting/acting_thread.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/pages/mapping.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {

/// A rank whose page is accepted. Its connection is its life: the end of file is its end.
struct AttachedRank {
  uint64_t id = 0;
  pages::BubbleIdentity identity;
  std::shared_ptr<const RankSource> source;
  pid_t pid = 0;
};

/// Main thread. Whatever is sent here costs a bounded amount of time, memory and descriptors.
class Trainers {
 public:
  enum class Change { kAttached, kLost };
  /// kLost: the connection has ended; the page tells whether in good order.
  using Listener = std::function<void(const AttachedRank&, Change)>;

  /// Listens at `path`. Errors: kAlreadyExists (another worker of this device), kPermission, kInvalidArgument.
  static Result<std::unique_ptr<Trainers>> listen(const std::string& path, const std::string& device, Loop& loop,
                                                  ActingThread& acting, Listener listener);
  ~Trainers();

  /// Makes the socket's name anew, if somebody has removed it; ranks that are attached stay so. A look at the file
  /// system.
  void keep_listening();

  const std::map<uint64_t, AttachedRank>& ranks() const { return ranks_; }
  /// Memory that ranks say they were refused just now, bytes; a claim.
  int64_t wanted_bytes() const;

 private:
  struct Connection {
    Fd socket;
    Loop::Timer patience = 0;
    uint64_t rank = 0;  // 0: no hello yet
  };
  Trainers(std::string path, std::string device, Loop& loop, ActingThread& acting, Listener listener);
  Status open_socket();
  void on_connection();
  void on_readable(int fd);
  Result<AttachedRank> accept_page(int fd);
  void refuse(int fd, const Error& error);
  void drop(int fd);

  const std::string path_, device_;
  Loop& loop_;
  ActingThread& acting_;
  Listener listener_;
  Fd socket_;
  std::map<int, Connection> connections_;
  std::map<uint64_t, AttachedRank> ranks_;
  uint64_t last_id_ = 0;
};

}  // namespace freeride::worker
