// How a trainer hands its bubble page to a worker: datagrams over a SOCK_SEQPACKET UNIX socket. Both sides are here.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::pages {

/// The trainer's one datagram: these 8 bytes, with the page's memfd as SCM_RIGHTS.
constexpr char kHello[] = "FRHELLO1";
constexpr size_t kHelloBytes = 8;
/// The worker's datagram: "OK", with a bell page's memfd or without, or "ERR " and one line. At most this long. A hook
/// takes a second datagram for a fault.
constexpr size_t kMaxReplyBytes = 512;

/// Whom the socket's mode lets in.
enum class Callers { kOwner, kAnybody };

/// A listening socket at `path`, mode 0600 or, for anybody, 0666, close-on-exec and non-blocking; a stale socket there
/// is replaced, anything else is an error. The folder must exist, and nobody else may write there. Errors:
/// kInvalidArgument (path too long, not a socket), kAlreadyExists (somebody listens), kPermission.
Result<Fd> listen_for_pages(const std::string& path, Callers callers = Callers::kOwner);

/// Connects to the worker's socket (non-blocking, close-on-exec). Errors: kNotFound (no such socket), kUnavailable
/// (nobody listens), kExhausted (too many wait to be let in), kPermission, kInvalidArgument (path too long).
Result<Fd> connect_to_worker(const std::string& path);

/// Sends kHello with `page_fd`. Never blocks. Errors: kUnavailable.
Status send_hello(int socket, int page_fd);

/// Sends the worker's datagram, with `bell_fd` if that is not -1. Never blocks. Errors: kUnavailable.
Status send_reply(int socket, std::string_view text, int bell_fd = -1);
/// recv(2) of that into `text`, without blocking; `bell` gets the descriptor that came with it, close-on-exec, if one
/// did. From a worker that is trusted: further descriptors are closed here.
ssize_t receive_reply(int socket, char* text, size_t bytes, Fd& bell);

/// What came in on an accepted connection.
struct Hello {
  Fd page;        ///< a memory file
  pid_t pid = 0;  ///< of the connecting process, from SO_PEERCRED; 0: not to be seen from here
  uid_t uid = 0;
};

/// Takes the trainer's datagram from `socket`, which is readable; never leaks a descriptor, whatever was sent. Who may
/// send one is for the caller to say. Descriptors that are no memory files are closed here, which blocks for as long as
/// the file system behind them likes. So from somebody who is not trusted, use receive_hello_apart(). Errors:
/// kUnavailable (nothing there, or closed), kVersion (another hello), kInvalidArgument (not exactly one memory file,
/// wrong length).
Result<Hello> receive_hello(int socket);

}  // namespace freeride::pages
