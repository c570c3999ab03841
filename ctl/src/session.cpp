#include "session.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "exit_code.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/sha256.hpp"
#include "json.hpp"

namespace freeride::ctl {
namespace {

constexpr std::string_view kIpc = "ipc://";

// A manager that has just been started makes its socket a moment later.
constexpr std::chrono::milliseconds kStarting{500};
constexpr std::chrono::milliseconds kLook{10};

// Whether there is a socket: without one nobody answers, however long one waits.
Status wait_for_socket(const std::string& endpoint, std::chrono::milliseconds patience) {
  if (endpoint.compare(0, kIpc.size(), kIpc) != 0) return {};
  const std::string path = endpoint.substr(kIpc.size());
  const auto end = std::chrono::steady_clock::now() + patience;
  while (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    if (std::chrono::steady_clock::now() >= end) {
      return Error{Code::kUnavailable, "no manager answers at " + endpoint + ": there is no such socket",
                   "start freeride-manager, or name its run folder with --run-dir"};
    }
    std::this_thread::sleep_for(kLook);
  }
  return {};
}

// Of a manager that has answered before: a piece is large, and the link may be slow.
constexpr std::chrono::milliseconds kPiecePatience{60'000};
constexpr int kMostStalls = 8;

}  // namespace

Session::Session(Options options, std::ostream& out) : options_(std::move(options)), out_(out) {
  if (!options_.request_id.empty()) return;
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  std::array<char, 17> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(number));
  options_.request_id = hex.data();
}

Result<int> Session::print(const nlohmann::json& json, Listing listing) {
  if (!options_.columns.empty()) {
    if (auto chosen = listing.table.choose(options_.columns); !chosen) return chosen.error();
  }
  switch (options_.format) {
    case Format::kJson:
      out_ << dump(json, 2) << "\n";
      break;
    case Format::kCsv:
      out_ << listing.table.csv();
      break;
    case Format::kTable:
      out_ << listing.text(colour());
      break;
  }
  return kExitOk;
}

Status Session::connect() {
  if (requester_ || !options_.usable) return options_.usable;
  if (auto there = wait_for_socket(options_.commands_endpoint, std::min(options_.timeout, kStarting)); !there)
    return there;
  return take(requester_, bus::Requester::connect(context_, options_.commands_endpoint, key()));
}

Error Session::explained(const Error& error) const {
  if (error.code != Code::kTimeout || error.message.find(options_.commands_endpoint) != std::string::npos) return error;
  return Error{Code::kTimeout, "no manager answers at " + options_.commands_endpoint + " (" + error.message + ")",
               "start freeride-manager, or name its run folder with --run-dir"};
}

Error Session::uncertain(const Error& error, bool loads) const {
  Error said = explained(error);
  if (error.code != Code::kTimeout || !requester_->may_be_done()) return said;
  said.message += "; it may have been done all the same";
  if (loads) said.hint = "give the same command again with --request-id " + options_.request_id + ": it is done once";
  return said;
}

// With the user's number: of one host's requests the manager tells no users apart.
std::string Session::next_load_id() {
  return "load-" + std::to_string(getuid()) + "-" + options_.request_id + "-" + std::to_string(++loads_);
}

Status Session::give(std::string& content) {
  bus::WritePlugin wish{sha256_hex(content), content.size(), 0};
  std::string piece;  // the first time none: what is there already?
  for (int stalls = 0; stalls < kMostStalls;) {
    const bool first = piece.empty();
    const auto patience = first ? options_.timeout : std::max(options_.timeout, kPiecePatience);
    const auto answer = requester_->request(wish, patience, std::move(piece));
    if (!answer && first && answer.error().code == Code::kVersion) return {};
    if (!answer) return explained(answer.error());
    const auto reply = answer->as<bus::FileReply>();
    if (!reply) return unreadable(bus::WritePlugin::kCommand, reply.error());
    if (reply->next >= content.size()) {
      content.clear();
      return {};
    }
    if (!first && reply->next <= wish.offset) ++stalls;
    wish.offset = reply->next;
    if (given_) given_(static_cast<double>(wish.offset) / static_cast<double>(content.size()));
    piece = content.substr(wish.offset, bus::WritePlugin::kPieceBytes);
  }
  return Error{Code::kUnavailable, "the manager takes no bytes of the plugin any more", "try again"};
}

Error Session::unreadable(const char* command, const Error& error) {
  return Error{error.code == Code::kVersion ? Code::kVersion : Code::kInternal,
               std::string("the manager's answer to '") + command + "' cannot be read: " + error.message,
               "install freeride-ctl and freeride-manager of one version"};
}

Result<std::unique_ptr<bus::Subscriber>> Session::subscribe(const std::vector<std::string>& topic_prefixes) {
  if (!options_.usable) return options_.usable.error();
  if (auto there = events_reachable(); !there) return there.error();
  auto subscriber = bus::Subscriber::connect(context_, options_.events_endpoint, topic_prefixes, key());
  if (!subscriber) return subscriber;
  if (auto in = (*subscriber)->await(options_.timeout); !in) return in.error();
  return subscriber;
}

Status Session::events_reachable() const {
  const std::string& endpoint = options_.events_endpoint;
  if (endpoint.compare(0, kIpc.size(), kIpc) != 0) return {};
  const std::string path = endpoint.substr(kIpc.size());
  if (auto open = check_socket(path); !open) return open;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{Code::kInvalidArgument, "'" + endpoint + "' is no usable endpoint",
                 "a socket's path has at most 107 bytes"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const Fd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return errno_error("cannot make a socket", errno);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return check_listener(probe.get(), path);
  if (errno == EAGAIN) return {};
  if (errno == EACCES || errno == EPERM) return errno_error("cannot connect to " + endpoint, errno);
  return Error{Code::kUnavailable, "no broker answers at " + endpoint,
               "start freeride-manager, or name its run folder with --run-dir"};
}

}  // namespace freeride::ctl
