#include "link.hpp"

#include <spdlog/spdlog.h>

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "freeride/bus/json.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {
constexpr size_t kMaxOpen = 4096;  // requests for a log stay open for two seconds, replacements until they are done
constexpr size_t kMaxUsers = 4096;
constexpr size_t kMaxAuditText = 256, kMaxAuditEntries = 64;

template <class C, class... Cs>
constexpr bool is_one_of = (std::is_same_v<C, Cs> || ...);
template <class C>
constexpr bool changes_something =
    is_one_of<C, bus::Load, bus::ReplacePlugin, bus::StopTask, bus::PauseTask, bus::ResumeTask, bus::TakeProfile,
              bus::StopProfile, bus::ImportProfiles, bus::RegisterWorker, bus::LiftFaults>;

// Workers are given every plugin and say what has become of every task.
bool is_from_worker(const std::string& command) {
  return command == bus::WorkerReport::kCommand || command == bus::RegisterWorker::kCommand ||
         command == bus::FetchPlugin::kCommand;
}

// A command's arguments as the audit log has them: bounded, without what is not set; of parameters, which may be
// secret, the names.
nlohmann::json for_audit(const std::string& key, const nlohmann::json& value) {
  if (value.is_string()) return bounded(value.get<std::string>(), kMaxAuditText);
  if (value.is_array()) return value.size();
  if (!value.is_object()) return value;
  auto shown = key == "params" ? nlohmann::json::array() : nlohmann::json::object();
  for (const auto& [name, inner] : value.items()) {
    if (shown.size() >= kMaxAuditEntries) break;
    if (key == "params") {
      shown.push_back(bounded(name, kMaxAuditText));
    } else if (!inner.empty() && inner != "") {
      shown[name] = for_audit(name, inner);
    }
  }
  return shown;
}

}  // namespace

bool Link::receive(Core& core, size_t limit) {
  for (size_t n = 0; n < limit; ++n) {
    auto incoming = server_->receive(std::chrono::milliseconds(0));
    if (!incoming) return false;
    if (!incoming->message.is_reply) {
      request(core, *incoming);
      continue;
    }
    std::string log;
    if (incoming->message.command == bus::GetLog::kCommand && !incoming->message.error) {
      if (auto reply = incoming->message.as<bus::LogReply>()) log = std::move(reply->text);
    }
    core.worker_reply(incoming->peer, incoming->message.id, incoming->message.error, log);
  }
  return true;
}

template <class C, class Call>
bool Link::on(const bus::Server::Incoming& incoming, Call call) {
  if (incoming.message.command != C::kCommand) return false;
  auto command = incoming.message.as<C>();
  std::optional<AuditEntry> audit;
  if constexpr (changes_something<C>) {
    audit.emplace(AuditEntry{unix_ms_(), incoming.process, C::kCommand, "{}"});
    if (command) audit->arguments = for_audit("", bus::to_json(*command)).dump();
  }
  if (!command) {
    refuse(incoming, audit, command.error());
    return true;
  }
  if (open_.size() >= kMaxOpen) {
    refuse(incoming, audit, Error{Code::kExhausted, "the manager has too many requests open", "try again"});
    return true;
  }
  const Ticket ticket = next_ticket_++;
  // What an answer needs; not the bytes of a plugin.
  Open& kept = open_[ticket];
  kept.request.peer = incoming.peer;
  kept.request.message.id = incoming.message.id;
  kept.request.message.command = incoming.message.command;
  kept.audit = std::move(audit);
  call(ticket, *command);
  const auto unanswered = open_.find(ticket);
  if (unanswered == open_.end() || !unanswered->second.audit) return true;
  AuditEntry begun = *unanswered->second.audit;
  begun.outcome = "pending";
  audit_.note(std::move(begun));
  return true;
}

void Link::refuse(const bus::Server::Incoming& request, const std::optional<AuditEntry>& audit, const Error& error) {
  if (audit) {
    AuditEntry entry = *audit;
    entry.outcome = to_string(error.code);
    entry.message = bounded(error.message, kMaxReason);
    audit_.note(std::move(entry));
  }
  server_->reply_error(request, error);
}

// Only who could be anybody anyway may say whose task it is.
bus::Load Link::with_user(bus::Load load, const Peer& by) {
  if (is_trusted_user(by.uid)) return load;
  if (users_.size() >= kMaxUsers) users_.clear();
  auto [known, fresh] = users_.try_emplace(by.uid);
  if (fresh) known->second = user_name(by.uid);
  load.user = known->second;
  return load;
}

void Link::lift_faults(Core& core, Ticket ticket, const bus::LiftFaults& wish, const Peer& by) {
  // Else whoever is blocked could lift it.
  if (is_trusted_user(by.uid)) return core.lift_faults(ticket, wish);
  answer(ticket,
         Error{Code::kPermission, "a block for GPU faults is lifted by root or the manager's own user only",
               "ask an operator"},
         {});
}

void Link::request(Core& core, const bus::Server::Incoming& in) {
  const Peer by = in.process;
  const std::string& command = in.message.command;
  if (is_from_worker(command) && !is_trusted_user(by.uid)) {
    const AuditEntry entry{unix_ms_(), by, bounded(command, kMaxAuditText), "{}"};
    return refuse(in, entry,
                  Error{Code::kPermission,
                        "this manager takes " + in_quotes(command) + " from workers of root and its own user only",
                        "run the worker as " + user_name(geteuid())});
  }
  const std::string& peer = in.peer;
  const std::string& id = in.message.id;
  const std::string& bytes = in.message.attachment;
  const bool known =
      on<bus::WorkerReport>(in, [&](Ticket t, const auto& c) { core.worker_report(t, peer, c); }) ||
      on<bus::RegisterWorker>(in, [&](Ticket t, const auto& c) { core.register_worker(t, peer, c); }) ||
      on<bus::FetchPlugin>(in, [&](Ticket t, const auto& c) { core.fetch_plugin(t, c.sha256); }) ||
      on<bus::Load>(in, [&](Ticket t, const auto& c) { core.load(t, id, with_user(c, by), bytes); }) ||
      on<bus::ReplacePlugin>(
          in, [&](Ticket t, const auto& c) { core.replace(t, id, c.task, with_user(c.load, by), bytes); }) ||
      on<bus::StopTask>(in, [&](Ticket t, const auto& c) { core.stop(t, c.task); }) ||
      on<bus::PauseTask>(in, [&](Ticket t, const auto& c) { core.pause(t, c.task); }) ||
      on<bus::ResumeTask>(in, [&](Ticket t, const auto& c) { core.resume(t, c.task); }) ||
      on<bus::ShowTask>(in, [&](Ticket t, const auto& c) { core.show(t, c.task); }) ||
      on<bus::ListTasks>(in, [&](Ticket t, const auto&) { core.list_tasks(t); }) ||
      on<bus::ListWorkers>(in, [&](Ticket t, const auto&) { core.list_workers(t); }) ||
      on<bus::ListPlugins>(in, [&](Ticket t, const auto&) { core.list_plugins(t); }) ||
      on<bus::GetStatus>(in, [&](Ticket t, const auto&) { core.status(t); }) ||
      on<bus::GetReport>(in, [&](Ticket t, const auto& c) { core.report(t, c.job); }) ||
      on<bus::TakeProfile>(in,
                           [&](Ticket t, auto c) {
                             c.load = with_user(std::move(c.load), by);
                             core.take_profile(t, c, bytes);
                           }) ||
      on<bus::FollowProfile>(in, [&](Ticket t, const auto& c) { core.follow_profile(t, c); }) ||
      on<bus::StopProfile>(in, [&](Ticket t, const auto& c) { core.stop_profile(t, c.run); }) ||
      on<bus::ListProfiles>(in, [&](Ticket t, const auto& c) { core.list_profiles(t, c); }) ||
      on<bus::ImportProfiles>(in, [&](Ticket t, const auto& c) { core.import_profiles(t, c); }) ||
      on<bus::ListFaults>(in, [&](Ticket t, const auto&) { core.list_faults(t); }) ||
      on<bus::LiftFaults>(in, [&](Ticket t, const auto& c) { lift_faults(core, t, c, by); });
  if (known) return;
  server_->reply_error(
      in, Error{Code::kVersion, "this manager knows no command " + in_quotes(command), "use programs of one version"});
}

void Link::answer(Ticket ticket, const Result<Reply>& reply, const std::string& attachment) {
  auto open = open_.extract(ticket);
  if (open.empty()) return spdlog::error("a request was answered twice (ticket {})", ticket);
  if (!reply) return refuse(open.mapped().request, open.mapped().audit, reply.error());
  if (open.mapped().audit) audit_.note(std::move(*open.mapped().audit));
  std::visit([&](const auto& body) { server_->reply(open.mapped().request, body, attachment); }, *reply);
}

Result<std::string> Link::send(const std::string& peer, const Order& order) {
  return std::visit([&](const auto& command) { return server_->send(peer, command); }, order);
}

}  // namespace freeride::manager
