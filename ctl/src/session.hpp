// One run of freeride-ctl: where the manager is, how to print, and the connection to it.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>
#include <zmq.hpp>

#include "format.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/sockets.hpp"

namespace freeride::ctl {

enum class Format { kTable, kJson, kCsv };

struct Options {
  std::string commands_endpoint, events_endpoint;
  std::optional<bus::ClientKey> key;  ///< for tcp:// endpoints
  Status usable;                      ///< what is wrong with these; said by the first verb that needs a manager
  Format format = Format::kTable;
  std::string columns;  ///< of lists; empty: all
  bool colour = false;
  bool json_errors = false;
  std::chrono::milliseconds timeout{5000};
  std::string request_id;  ///< of an earlier run whose loads are meant; empty: of none
};

/// Whether a command changes nothing, so that nobody need care whether it was done.
template <class C, class... Cs>
constexpr bool is_one_of = (std::is_same_v<C, Cs> || ...);
template <class C>
constexpr bool only_reads =
    is_one_of<C, bus::ShowTask, bus::ReadLog, bus::ReadFile, bus::ReadPlugin, bus::ListTasks, bus::ListWorkers,
              bus::ListRanks, bus::ListPlugins, bus::GetStatus, bus::GetReport, bus::GetUsage, bus::PlanLoad,
              bus::FollowProfile, bus::ListProfiles, bus::ListFaults, bus::ShowBatch, bus::ListBatches>;

/// Connects when first asked to. Not thread-safe. Methods block up to Options::timeout.
class Session {
 public:
  Session(Options options, std::ostream& out);

  const Options& options() const { return options_; }
  bool json() const { return options_.format == Format::kJson; }
  bool colour() const { return options_.colour && options_.format == Format::kTable; }
  /// A list, as --format and --columns say; `json`: the reply as it came. Errors: kInvalidArgument (no such column).
  Result<int> print(const nlohmann::json& json, Listing listing);
  bool remote() const { return options_.events_endpoint.rfind("tcp://", 0) == 0; }
  std::ostream& out() { return out_; }
  zmq::context_t& context() { return context_; }

  /// Asks the manager and decodes its answer. Errors: the manager's own; kUnavailable (there is no socket); kTimeout
  /// (nobody answers: names the endpoint and what to start); kVersion or kInternal (the answer cannot be read).
  /// `patience` is for an answer that takes its time; Options::timeout, if that is longer. An attachment that is large
  /// is a plugin, and `command` names its SHA-256: it is given to the manager before, piece by piece.
  template <class Reply, class Command>
  Result<Reply> ask(const Command& command, std::string attachment = {}, std::chrono::milliseconds patience = {}) {
    if (auto ready = connect(); !ready) return ready.error();
    if (attachment.size() > bus::WritePlugin::kPieceBytes) {
      if (auto given = give(attachment); !given) return given.error();
    }
    constexpr bool kLoads = std::is_same_v<Command, bus::Load>;
    auto message = requester_->request(command, std::max(patience, options_.timeout), std::move(attachment),
                                       kLoads ? next_load_id() : std::string());
    if (!message) return only_reads<Command> ? explained(message.error()) : uncertain(message.error(), kLoads);
    auto reply = message->template as<Reply>();
    if (!reply) return unreadable(Command::kCommand, reply.error());
    return reply;
  }

  /// The same of an answer with something attached, which is put into `attachment`.
  template <class Reply, class Command>
  Result<Reply> ask_attached(const Command& command, std::string& attachment) {
    if (auto ready = connect(); !ready) return ready.error();
    auto message = requester_->request(command, options_.timeout, {});
    if (!message) return explained(message.error());
    auto reply = message->template as<Reply>();
    if (!reply) return unreadable(Command::kCommand, reply.error());
    attachment = std::move(message->attachment);
    return reply;
  }

  /// Calls `at` with the share of a plugin, of 1, that the manager has been given. Until it is told otherwise.
  void on_given(std::function<void(double)> at) { given_ = std::move(at); }
  /// Whether there has been a socket to connect to.
  bool connected() const { return requester_ != nullptr; }

  /// Events of these topics. Errors: kUnavailable (no process listens at the events endpoint right now; ZeroMQ itself
  /// would wait for one for ever); at a tcp:// endpoint Subscriber::await()'s.
  Result<std::unique_ptr<bus::Subscriber>> subscribe(const std::vector<std::string>& topic_prefixes);

 private:
  Status connect();
  Status events_reachable() const;
  const bus::ClientKey* key() const { return options_.key ? &*options_.key : nullptr; }
  Error explained(const Error& error) const;
  /// The same of a command that changes something: where it may have been done, the message says so.
  Error uncertain(const Error& error, bool loads) const;
  /// Gives the manager `content` in pieces, and empties it. One of an earlier version leaves it to its command.
  Status give(std::string& content);
  std::string next_load_id();
  static Error unreadable(const char* command, const Error& error);

  Options options_;
  std::ostream& out_;
  std::function<void(double)> given_;
  size_t loads_ = 0;
  zmq::context_t context_{1};  // before what uses it, so that it is ended last
  std::unique_ptr<bus::Requester> requester_;
};

}  // namespace freeride::ctl
