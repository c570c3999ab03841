#include "link.hpp"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "freeride/base/host_id.hpp"
#include "freeride/bus/json.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {
constexpr size_t kMaxAuditText = 256, kMaxAuditEntries = 64;
constexpr size_t kShares = 16;  // so many senders can keep out the others

template <class C, class... Cs>
constexpr bool is_one_of = (std::is_same_v<C, Cs> || ...);
template <class C>
constexpr bool changes_something =
    is_one_of<C, bus::Load, bus::ReplacePlugin, bus::StopTask, bus::PauseTask, bus::ResumeTask, bus::RemoveTask,
              bus::TakeProfile, bus::StopProfile, bus::RegisterWorker, bus::LiftFaults, bus::Drain, bus::Uncordon,
              bus::SubmitBatch, bus::RemoveBatch>;

// What one has to have the right to, for each command. Workers are given every plugin and say what has become of every
// task.
template <class C>
constexpr policy::Right right_to() {
  using policy::Right;
  if constexpr (is_one_of<C, bus::RegisterWorker, bus::WorkerReport, bus::FetchPlugin, bus::FetchState>) {
    return Right::kServe;
  } else if constexpr (is_one_of<C, bus::Load, bus::PlanLoad, bus::TakeProfile, bus::SubmitBatch, bus::ReadPlugin,
                                 bus::WritePlugin>) {
    return Right::kSubmit;
  } else if constexpr (is_one_of<C, bus::ShowTask, bus::ReadLog, bus::ShowBatch>) {
    return Right::kRead;
  } else if constexpr (is_one_of<C, bus::ReadFile, bus::ReplacePlugin>) {
    return Right::kFiles;
  } else if constexpr (is_one_of<C, bus::Drain, bus::Uncordon>) {
    return Right::kDrain;
  } else if constexpr (is_one_of<C, bus::StopTask, bus::PauseTask, bus::ResumeTask, bus::RemoveTask, bus::StopProfile,
                                 bus::RemoveBatch>) {
    return Right::kSteer;
  } else if constexpr (is_one_of<C, bus::LiftFaults>) {
    return Right::kLift;
  } else {
    static_assert(
        is_one_of<C, bus::ListTasks, bus::ListWorkers, bus::ListRanks, bus::ListPlugins, bus::GetStatus, bus::GetReport,
                  bus::GetUsage, bus::FollowProfile, bus::ListProfiles, bus::ListFaults, bus::ListBatches>,
        "say here who may command it");
    return Right::kLook;
  }
}

// What keeps workers alive, answered before call() returns: there is no limit that others could use up.
template <class C>
constexpr bool is_answered_at_once = is_one_of<C, bus::RegisterWorker, bus::WorkerReport>;

// Whose share a request is in: a worker's is none of its user's other requests. A node may name any number of clients,
// so all of its workers share one.
std::string sender_of(const policy::Identity& by, const std::string& peer, bool serves) {
  if (by.local) return serves ? "worker " + peer : "user " + std::to_string(by.uid);
  return (serves ? "node " : "key ") + by.key + " " + by.account;
}

// Whose the task or the profile run is that a command is about, where there is one.
template <class C>
std::optional<std::string> owner_of(const Core& core, const C& command) {
  if constexpr (is_one_of<C, bus::StopProfile>) {
    return core.user_of_profile(command.run);
  } else if constexpr (is_one_of<C, bus::ShowBatch, bus::RemoveBatch>) {
    return core.user_of_batch(command.batch);
  } else if constexpr (right_to<C>() == policy::Right::kSteer || right_to<C>() == policy::Right::kRead ||
                       right_to<C>() == policy::Right::kFiles) {
    return core.user_of_task(command.task);
  } else {
    return std::nullopt;
  }
}

// A worker's name has its host's.
template <class C>
Status permit_worker(const policy::Identity& by, const C& command) {
  if constexpr (is_one_of<C, bus::RegisterWorker, bus::WorkerReport, bus::FetchState>) {
    return policy::permit_worker(by, command.worker);
  } else {
    return {};
  }
}

// A host's own root may drain that host.
template <class C>
Status permit_drain(const policy::Identity& by, const C& command) {
  if constexpr (right_to<C>() == policy::Right::kDrain) {
    return policy::permit_drain(by, command.subject);
  } else {
    return {};
  }
}

// Only an operator of this host may say whose task it is: who could be anybody anyway.
bus::Load with_user(bus::Load load, const policy::Identity& by) {
  if (!by.local || by.role != policy::Role::kOperator) load.user = by.account;
  // Whatever it says itself: files are used under this number.
  const bool by_node = !by.local && !by.host.empty() && by.role == policy::Role::kUser;
  load.uid = by.local || by_node ? int64_t{by.uid} : -1;
  load.uid_host = by.local ? host_id() : by_node ? by.host : "";
  return load;
}

// A command's arguments as the audit log has them: bounded, without what is not set; of parameters, which may be
// secret, the names.
nlohmann::json for_audit(const std::string& key, const nlohmann::json& value) {
  if (value.is_string()) return bounded(value.get<std::string>(), kMaxAuditText);
  if (value.is_array()) return value.size();
  if (!value.is_object()) return value;
  const bool secret = key == "params" || key == "env";
  auto shown = secret ? nlohmann::json::array() : nlohmann::json::object();
  for (const auto& [name, inner] : value.items()) {
    if (shown.size() >= kMaxAuditEntries) break;
    if (secret) {
      shown.push_back(bounded(name, kMaxAuditText));
    } else if (key.empty() && name == "files") {
      shown[name] = inner;  // which, and whether to write
    } else if (!inner.empty() && inner != "") {
      shown[name] = for_audit(name, inner);
    }
  }
  return shown;
}

// What a command names, for the event that tells of it.
template <class C>
std::string target_of(const C& command) {
  if constexpr (requires { command.task; }) return command.task;
  if constexpr (requires { command.run; }) return command.run;
  if constexpr (is_one_of<C, bus::Load>) return command.name.empty() ? command.plugin : command.name;
  if constexpr (is_one_of<C, bus::SubmitBatch>) return command.load.name;
  if constexpr (is_one_of<C, bus::RemoveBatch>) return command.batch;
  if constexpr (is_one_of<C, bus::TakeProfile>) return command.load.plugin;
  if constexpr (is_one_of<C, bus::RegisterWorker>) return command.worker;
  if constexpr (is_one_of<C, bus::LiftFaults>) return command.name;
  if constexpr (is_one_of<C, bus::Drain, bus::Uncordon>) return command.subject;
  return {};
}

}  // namespace

bool Link::receive(Core& core, size_t limit) {
  const bool more = receive_some(core, limit);
  core.load_waiting();
  return more;
}

bool Link::receive_some(Core& core, size_t limit) {
  for (size_t n = 0; n < limit && !core.enough_waiting(); ++n) {
    auto incoming = server_->receive(std::chrono::milliseconds(0));
    if (!incoming) return false;
    if (!incoming->message.is_reply) {
      request(core, *incoming);
      continue;
    }
    std::string log;
    std::optional<Reply> data;
    if (incoming->message.command == bus::GetLog::kCommand && !incoming->message.error) {
      if (auto reply = incoming->message.as<bus::LogReply>()) {
        log = reply->text;
        data = Reply(std::move(*reply));
      }
    } else if ((incoming->message.command == bus::GetFile::kCommand ||
                incoming->message.command == bus::GetState::kCommand ||
                incoming->message.command == bus::GetPlugin::kCommand) &&
               !incoming->message.error) {
      if (auto reply = incoming->message.as<bus::FileReply>()) data = Reply(std::move(*reply));
    }
    core.worker_reply(incoming->peer, incoming->message.id, incoming->message.error, log, data ? &*data : nullptr,
                      incoming->message.attachment);
  }
  return true;
}

template <class C, class Call>
bool Link::on(Core& core, const bus::Server::Incoming& incoming, const policy::Identity& by, Call call) {
  if (incoming.message.command != C::kCommand) return false;
  // Before its body is read: who may not is not worth the work.
  AuditEntry said{unix_ms_(), by, C::kCommand};
  said.arguments = "{}";
  if (auto may = policy::permit(by, right_to<C>(), C::kCommand); !may) {
    refuse(incoming, said, may.error());
    return true;
  }
  auto command = incoming.message.as<C>();
  std::optional<AuditEntry> audit;
  if constexpr (changes_something<C>) {
    audit = said;
    if (command) {
      audit->target = bounded(target_of(*command), kMaxAuditText);
      audit->arguments = for_audit("", bus::to_json(*command)).dump();
    }
  }
  if (!command) {
    refuse(incoming, audit, command.error());
    return true;
  }
  Status may = policy::permit(by, right_to<C>(), C::kCommand, owner_of(core, *command));
  if (may.ok()) may = permit_worker(by, *command);
  if (may.ok()) may = permit_drain(by, *command);
  if (!may) {
    refuse(incoming, audit ? audit : said, may.error());
    return true;
  }
  constexpr bool kServes = right_to<C>() == policy::Right::kServe;
  const std::string sender = sender_of(by, incoming.peer, kServes);
  if constexpr (!is_answered_at_once<C>) {
    Status room = room_for(sender, kServes);
    if (!room && is_one_of<C, bus::Load>) {
      core.load_waiting();  // which answers those that wait together
      room = room_for(sender, kServes);
    }
    if (!room) {
      refuse(incoming, audit, room.error());
      return true;
    }
  }
  const Ticket ticket = next_ticket_++;
  // What an answer needs; not the bytes of a plugin.
  Open& kept = open_[ticket];
  kept.request.peer = incoming.peer;
  kept.request.sender = incoming.sender;
  kept.request.message.id = incoming.message.id;
  kept.request.message.command = incoming.message.command;
  kept.audit = std::move(audit);
  kept.sender = sender;
  kept.serves = kServes;
  ++open_of_[sender];
  if (!kServes) ++open_of_clients_;
  call(ticket, *command);
  if constexpr (is_one_of<C, bus::Load>) return true;  // it is answered before receive() returns, or its content comes
  const auto unanswered = open_.find(ticket);
  if (unanswered == open_.end() || !unanswered->second.audit) return true;
  AuditEntry begun = *unanswered->second.audit;
  begun.outcome = "pending";
  note(std::move(begun));
  return true;
}

template <class Call>
void Link::charged(Ticket ticket, const bus::Load& load, const policy::Identity& by, Call call) {
  bus::Load meant = with_user(load, by);
  const auto in_group = [&](const std::string& group) { return identities_.is_in_group(by.uid, group); };
  if (auto may = accounts_.charge(meant, by, in_group); !may) return answer(ticket, may.error(), {});
  call(meant);
}

Status Link::room_for(const std::string& sender, bool serves) const {
  const auto open = open_of_.find(sender);
  if (open != open_of_.end() && open->second >= most_open_ / kShares) {
    return Error{Code::kExhausted, std::to_string(open->second) + " requests of this sender wait for their answers",
                 "try again when they are answered"};
  }
  if (!serves && open_of_clients_ >= most_open_)
    return Error{Code::kExhausted, "the manager has too many requests open", "try again"};
  return {};
}

void Link::note(AuditEntry entry) {
  publisher_->publish(bus::CommandDone{entry.command, entry.target, entry.by.account, entry.outcome,
                                       bounded(entry.message, kMaxReason)});
  audit_.note(std::move(entry));
}

void Link::refuse(const bus::Server::Incoming& request, const std::optional<AuditEntry>& audit, const Error& error) {
  if (audit) {
    AuditEntry entry = *audit;
    entry.outcome = to_string(error.code);
    entry.message = bounded(error.message, kMaxReason);
    note(std::move(entry));
  }
  server_->reply_error(request, error);
}

void Link::request(Core& core, bus::Server::Incoming& in) {
  // As it was when the message was let in, a moment ago.
  const policy::Identity by = identities_.of(in.sender, in.message);
  const std::string& command = in.message.command;
  const std::string& peer = in.peer;
  // Of tasks that wait to be made a worker says nothing; who asks for one, or orders it, is to find it.
  if (command != bus::Load::kCommand && command != bus::WorkerReport::kCommand) core.load_waiting();
  // Remembered on disk: nobody is given another's task for its request.
  const std::string id = by.local ? in.message.id : by.key + " " + by.account + " " + in.message.id;
  std::string& bytes = in.message.attachment;  // moved on by the command that it belongs to
  const bool known =
      on<bus::WorkerReport>(core, in, by, [&](Ticket t, const auto& c) { core.worker_report(t, peer, c); }) ||
      on<bus::RegisterWorker>(core, in, by,
                              [&](Ticket t, auto c) {
                                // Who is on this host is on it whatever it calls it: the kernel says so.
                                if (c.file_users == "own" && by.local) c.file_users += " " + host_id();
                                core.register_worker(t, peer, c, by.local);
                              }) ||
      on<bus::FetchPlugin>(core, in, by, [&](Ticket t, const auto& c) { core.fetch_plugin(t, c); }) ||
      on<bus::FetchState>(core, in, by, [&](Ticket t, const auto& c) { core.fetch_state(t, c); }) ||
      on<bus::Load>(core, in, by,
                    [&](Ticket t, const auto& c) {
                      charged(t, c, by, [&](const bus::Load& load) { core.load_later(t, id, load, std::move(bytes)); });
                    }) ||
      on<bus::PlanLoad>(core, in, by,
                        [&](Ticket t, const auto& c) {
                          charged(t, c.load, by, [&](const bus::Load& load) { core.plan_load(t, load); });
                        }) ||
      on<bus::ReplacePlugin>(
          core, in, by,
          [&](Ticket t, const auto& c) { core.replace(t, id, c.task, with_user(c.load, by), std::move(bytes)); }) ||
      on<bus::StopTask>(core, in, by, [&](Ticket t, const auto& c) { core.stop(t, c.task); }) ||
      on<bus::PauseTask>(core, in, by, [&](Ticket t, const auto& c) { core.pause(t, c.task); }) ||
      on<bus::ResumeTask>(core, in, by, [&](Ticket t, const auto& c) { core.resume(t, c.task); }) ||
      on<bus::RemoveTask>(core, in, by, [&](Ticket t, const auto& c) { core.remove(t, c.task); }) ||
      on<bus::ShowTask>(core, in, by, [&](Ticket t, const auto& c) { core.show(t, c.task); }) ||
      on<bus::ReadLog>(core, in, by, [&](Ticket t, const auto& c) { core.read_log(t, c); }) ||
      on<bus::ReadFile>(core, in, by, [&](Ticket t, const auto& c) { core.read_file(t, c); }) ||
      on<bus::ReadPlugin>(core, in, by, [&](Ticket t, const auto& c) { core.read_plugin(t, c); }) ||
      on<bus::WritePlugin>(core, in, by,
                           [&](Ticket t, const auto& c) { core.write_plugin(t, by.account, c, bytes); }) ||
      on<bus::Drain>(core, in, by, [&](Ticket t, const auto& c) { core.drain(t, c); }) ||
      on<bus::Uncordon>(core, in, by, [&](Ticket t, const auto& c) { core.uncordon(t, c.subject); }) ||
      on<bus::SubmitBatch>(core, in, by,
                           [&](Ticket t, auto c) {
                             charged(t, c.load, by, [&](const bus::Load& load) {
                               c.load = load;
                               core.submit_batch(t, c, std::move(bytes));
                             });
                           }) ||
      on<bus::ShowBatch>(core, in, by, [&](Ticket t, const auto& c) { core.show_batch(t, c.batch); }) ||
      on<bus::ListBatches>(core, in, by, [&](Ticket t, const auto&) { core.list_batches(t); }) ||
      on<bus::RemoveBatch>(core, in, by, [&](Ticket t, const auto& c) { core.remove_batch(t, c.batch); }) ||
      on<bus::ListTasks>(core, in, by, [&](Ticket t, const auto&) { core.list_tasks(t); }) ||
      on<bus::ListWorkers>(core, in, by, [&](Ticket t, const auto&) { core.list_workers(t); }) ||
      on<bus::ListRanks>(core, in, by, [&](Ticket t, const auto& c) { core.list_ranks(t, c.job); }) ||
      on<bus::ListPlugins>(core, in, by, [&](Ticket t, const auto&) { core.list_plugins(t); }) ||
      on<bus::GetStatus>(core, in, by, [&](Ticket t, const auto&) { core.status(t); }) ||
      on<bus::GetReport>(core, in, by, [&](Ticket t, const auto& c) { core.report(t, c.job); }) ||
      on<bus::GetUsage>(core, in, by, [&](Ticket t, const auto& c) { core.usage(t, c); }) ||
      on<bus::TakeProfile>(core, in, by,
                           [&](Ticket t, auto c) {
                             c.load = with_user(std::move(c.load), by);
                             core.take_profile(t, c, std::move(bytes));
                           }) ||
      on<bus::FollowProfile>(core, in, by, [&](Ticket t, const auto& c) { core.follow_profile(t, c); }) ||
      on<bus::StopProfile>(core, in, by, [&](Ticket t, const auto& c) { core.stop_profile(t, c.run); }) ||
      on<bus::ListProfiles>(core, in, by, [&](Ticket t, const auto& c) { core.list_profiles(t, c); }) ||
      on<bus::ListFaults>(core, in, by, [&](Ticket t, const auto&) { core.list_faults(t); }) ||
      on<bus::LiftFaults>(core, in, by, [&](Ticket t, const auto& c) { core.lift_faults(t, c); });
  if (known) return;
  server_->reply_error(
      in, Error{Code::kVersion, "this manager knows no command " + in_quotes(command), "use programs of one version"});
}

void Link::answer(Ticket ticket, const Result<Reply>& reply, const std::string& attachment) {
  auto open = open_.extract(ticket);
  if (open.empty()) return spdlog::error("a request was answered twice (ticket {})", ticket);
  if (const auto of = open_of_.find(open.mapped().sender); --of->second == 0) open_of_.erase(of);
  if (!open.mapped().serves) --open_of_clients_;
  if (!reply) return refuse(open.mapped().request, open.mapped().audit, reply.error());
  if (open.mapped().audit) note(std::move(*open.mapped().audit));
  std::visit([&](const auto& body) { server_->reply(open.mapped().request, body, attachment); }, *reply);
}

Result<std::string> Link::send(const std::string& peer, const Order& order) {
  return std::visit([&](const auto& command) { return server_->send(peer, command); }, order);
}

}  // namespace freeride::manager
