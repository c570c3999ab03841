#include "link.hpp"

#include <spdlog/spdlog.h>

#include "text.hpp"

namespace freeride::manager {
namespace {
constexpr size_t kMaxOpen = 4096;  // requests for a log stay open for two seconds, replacements until they are done
}

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
void Link::with(const bus::Server::Incoming& incoming, Call call) {
  auto command = incoming.message.as<C>();
  if (!command) return server_->reply_error(incoming, command.error());
  if (open_.size() >= kMaxOpen) {
    return server_->reply_error(incoming,
                                Error{Code::kExhausted, "the manager has too many requests open", "try again"});
  }
  const Ticket ticket = next_ticket_++;
  // What an answer needs; not the bytes of a plugin.
  bus::Server::Incoming& kept = open_[ticket];
  kept.peer = incoming.peer;
  kept.message.id = incoming.message.id;
  kept.message.command = incoming.message.command;
  call(ticket, *command, incoming.message.attachment);
}

void Link::request(Core& core, const bus::Server::Incoming& incoming) {
  const std::string peer = incoming.peer;
  const std::string id = incoming.message.id;
  const std::string& command = incoming.message.command;
  const auto is = [&](const char* name) { return command == name; };
  using A = const std::string&;
  if (is(bus::WorkerReport::kCommand)) {
    with<bus::WorkerReport>(incoming, [&](Ticket t, const auto& c, A) { core.worker_report(t, peer, c); });
  } else if (is(bus::RegisterWorker::kCommand)) {
    with<bus::RegisterWorker>(incoming, [&](Ticket t, const auto& c, A) { core.register_worker(t, peer, c); });
  } else if (is(bus::FetchPlugin::kCommand)) {
    with<bus::FetchPlugin>(incoming, [&](Ticket t, const auto& c, A) { core.fetch_plugin(t, c.sha256); });
  } else if (is(bus::Load::kCommand)) {
    with<bus::Load>(incoming, [&](Ticket t, const auto& c, A attachment) { core.load(t, id, c, attachment); });
  } else if (is(bus::ReplacePlugin::kCommand)) {
    with<bus::ReplacePlugin>(
        incoming, [&](Ticket t, const auto& c, A attachment) { core.replace(t, id, c.task, c.load, attachment); });
  } else if (is(bus::StopTask::kCommand)) {
    with<bus::StopTask>(incoming, [&](Ticket t, const auto& c, A) { core.stop(t, c.task); });
  } else if (is(bus::PauseTask::kCommand)) {
    with<bus::PauseTask>(incoming, [&](Ticket t, const auto& c, A) { core.pause(t, c.task); });
  } else if (is(bus::ResumeTask::kCommand)) {
    with<bus::ResumeTask>(incoming, [&](Ticket t, const auto& c, A) { core.resume(t, c.task); });
  } else if (is(bus::ShowTask::kCommand)) {
    with<bus::ShowTask>(incoming, [&](Ticket t, const auto& c, A) { core.show(t, c.task); });
  } else if (is(bus::ListTasks::kCommand)) {
    with<bus::ListTasks>(incoming, [&](Ticket t, const auto&, A) { core.list_tasks(t); });
  } else if (is(bus::ListWorkers::kCommand)) {
    with<bus::ListWorkers>(incoming, [&](Ticket t, const auto&, A) { core.list_workers(t); });
  } else if (is(bus::ListPlugins::kCommand)) {
    with<bus::ListPlugins>(incoming, [&](Ticket t, const auto&, A) { core.list_plugins(t); });
  } else if (is(bus::GetStatus::kCommand)) {
    with<bus::GetStatus>(incoming, [&](Ticket t, const auto&, A) { core.status(t); });
  } else if (is(bus::GetReport::kCommand)) {
    with<bus::GetReport>(incoming, [&](Ticket t, const auto& c, A) { core.report(t, c.job); });
  } else if (is(bus::TakeProfile::kCommand)) {
    with<bus::TakeProfile>(incoming,
                           [&](Ticket t, const auto& c, A attachment) { core.take_profile(t, c, attachment); });
  } else if (is(bus::FollowProfile::kCommand)) {
    with<bus::FollowProfile>(incoming, [&](Ticket t, const auto& c, A) { core.follow_profile(t, c); });
  } else if (is(bus::StopProfile::kCommand)) {
    with<bus::StopProfile>(incoming, [&](Ticket t, const auto& c, A) { core.stop_profile(t, c.run); });
  } else if (is(bus::ListProfiles::kCommand)) {
    with<bus::ListProfiles>(incoming, [&](Ticket t, const auto& c, A) { core.list_profiles(t, c); });
  } else if (is(bus::ImportProfiles::kCommand)) {
    with<bus::ImportProfiles>(incoming, [&](Ticket t, const auto& c, A) { core.import_profiles(t, c); });
  } else {
    server_->reply_error(incoming, Error{Code::kVersion, "this manager knows no command " + in_quotes(command),
                                         "use programs of one version"});
  }
}

void Link::answer(Ticket ticket, const Result<Reply>& reply, const std::string& attachment) {
  auto open = open_.extract(ticket);
  if (open.empty()) return spdlog::error("a request was answered twice (ticket {})", ticket);
  if (!reply) return server_->reply_error(open.mapped(), reply.error());
  std::visit([&](const auto& body) { server_->reply(open.mapped(), body, attachment); }, *reply);
}

Result<std::string> Link::send(const std::string& peer, const Order& order) {
  return std::visit([&](const auto& command) { return server_->send(peer, command); }, order);
}

}  // namespace freeride::manager
