#include "daemon/manager_link.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <random>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/policy/heartbeat.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kHeartbeatNs = kNsPerSec;
constexpr int64_t kSoonNs = 50 * kNsPerMs;  // several changes at once make one report
constexpr int64_t kAtOnceNs = 5 * kNsPerMs;
constexpr int64_t kSilenceNs = 3500 * kNsPerMs;    // of a manager that should have answered three heartbeats
constexpr int64_t kFirstPauseNs = 500 * kNsPerMs;  // between attempts to register
constexpr int64_t kLongestPauseNs = 4 * kNsPerSec;
constexpr int64_t kFetchNs = 60 * kNsPerSec;  // without any piece of a plugin
constexpr int64_t kPieceNs = 5 * kNsPerSec;   // until a piece is asked for again
constexpr size_t kPieceBytes = 1u << 20;
constexpr int64_t kAskNs = 10 * kNsPerSec;
constexpr size_t kMostRegistrations = 8;
constexpr size_t kMostSent = 4096;  // more than are sent in the default term, at one in kAtOnceNs
constexpr int64_t kLongestTermMs = 7 * 86'400'000LL;

int64_t some_phase_ns() {
  std::random_device random;
  return std::uniform_int_distribution<int64_t>(0, kHeartbeatNs - 1)(random);
}

}  // namespace

ManagerLink::ManagerLink(zmq::context_t& context, std::string endpoint, Loop& loop, Host& host)
    : context_(context), endpoint_(std::move(endpoint)), loop_(loop), host_(host), phase_ns_(some_phase_ns()) {}

ManagerLink::~ManagerLink() {
  loop_.cancel(timer_);
  for (auto& [id, question] : questions_) loop_.cancel(question.patience);
  if (requester_ != nullptr) loop_.forget(requester_->fd());
}

Status ManagerLink::start() {
  if (auto s = take(requester_, bus::Requester::connect(context_, endpoint_)); !s.ok()) return s;
  // The handler has nothing to do: waking the loop is enough, receive() follows every turn.
  if (auto s = loop_.watch(requester_->fd(), EPOLLIN, [](uint32_t) {}); !s.ok()) return s;
  registration_pause_ns_ = kFirstPauseNs;
  tick();
  return {};
}

void ManagerLink::schedule(int64_t when_ns) {
  if (timer_ != 0 && timer_at_ns_ <= when_ns) return;
  loop_.cancel(timer_);
  timer_at_ns_ = when_ns;
  timer_ = loop_.at(when_ns, [this] {
    timer_ = 0;
    tick();
  });
}

void ManagerLink::tick() {
  const int64_t now_ns = SteadyClock::now();
  if (registered_ && now_ns - heard_ns_ > kSilenceNs) lose("the manager at " + endpoint_ + " has fallen silent");
  if (registered_) {
    send_report();
    schedule(policy::next_heartbeat_ns(now_ns, phase_ns_, kHeartbeatNs));
    return;
  }
  if (auto open = requester_->reachable(); !open.ok() && open.error().text() != said_) {
    said_ = open.error().text();
    spdlog::error("{}", said_);
  }
  send_registration();
  schedule(now_ns + registration_pause_ns_);
  registration_pause_ns_ = std::min(kLongestPauseNs, registration_pause_ns_ * 2);
}

void ManagerLink::lose(const std::string& why) {
  registered_ = false;
  registration_pause_ns_ = kFirstPauseNs;
  report_id_.clear();
  spdlog::warn("{}; side tasks continue until their orders expire, and registering is tried again", why);
}

// Taken before the message is made: whatever the manager answers, it answers later.
uint64_t ManagerLink::next_number() {
  sent_.push_back(boottime_now());
  if (sent_.size() > kMostSent) sent_.pop_front();
  return ++number_;
}

std::optional<policy::OrderTerm> ManagerLink::term_of(uint64_t heard) const {
  if (heard == 0) return policy::OrderTerm{};
  if (heard > number_ || number_ - heard >= sent_.size()) return std::nullopt;
  return policy::term_of(sent_[sent_.size() - 1 - (number_ - heard)], limits_);
}

void ManagerLink::take_plan(const bus::WorkerPlan& plan) {
  if (plan.heard != 0) {
    if (plan.heard < heard_) return;  // held up on its way: there has been a later one
    heard_ = plan.heard;
    limits_.pause_ns = std::clamp<int64_t>(plan.pause_ms, 1, kLongestTermMs) * kNsPerMs;
    limits_.stop_ns = std::max(limits_.pause_ns, std::clamp<int64_t>(plan.stop_ms, 1, kLongestTermMs) * kNsPerMs);
  }
  host_.on_plan(plan);
}

// A key that is revoked is said to every report.
void ManagerLink::warn_once(const std::string& text) {
  if (text == said_) return;
  said_ = text;
  spdlog::warn("{}", text);
}

void ManagerLink::send_registration() {
  // An attempt that was only slow counts as well; what follows from its answer is in order with what comes after it.
  if (registrations_.size() >= kMostRegistrations) registrations_.erase(registrations_.begin());
  const uint64_t number = next_number();
  bus::RegisterWorker registration = host_.registration();
  registration.number = number;
  registrations_.push_back(requester_->send(registration));
}

void ManagerLink::send_report() {
  last_report_ns_ = SteadyClock::now();
  const uint64_t number = next_number();
  bus::WorkerReport report = host_.report();
  report.number = number;
  report_id_ = requester_->send(report);
}

void ManagerLink::report_soon() {
  if (registered_) schedule(std::max(SteadyClock::now(), last_report_ns_ + kSoonNs));
}

void ManagerLink::report_at_once() {
  if (registered_) schedule(std::max(SteadyClock::now(), last_report_ns_ + kAtOnceNs));
}

void ManagerLink::leave() {
  if (!registered_) return;
  const uint64_t number = next_number();
  bus::WorkerReport report = host_.report();
  report.number = number;
  report.leaving = true;
  auto answer = requester_->request(report, std::chrono::milliseconds(500));
  if (!answer.ok()) spdlog::debug("the manager did not answer the last report: {}", answer.error().text());
}

void ManagerLink::fetch(const std::string& sha256, Fetched fetched) {
  fetch_piece(std::make_shared<Fetch>(Fetch{sha256, {}, SteadyClock::now(), std::move(fetched)}));
}

// In pieces: what has come stays, however often the way to the manager is lost meanwhile.
void ManagerLink::fetch_piece(const std::shared_ptr<Fetch>& fetch) {
  const bus::FetchPlugin piece{fetch->sha256, fetch->bytes.size(), kPieceBytes};
  await(requester_->send(piece), kPieceNs, [this, fetch](const Result<bus::Message>& reply) {
    const int64_t now_ns = SteadyClock::now();
    if (!reply.ok()) {
      if (now_ns - fetch->heard_ns < kFetchNs) return fetch_piece(fetch);
      return fetch->fetched(
          Error{Code::kTimeout, "the manager has sent nothing of the plugin for 60 s", "load it again"});
    }
    if (reply->error) return fetch->fetched(*reply->error);
    fetch->heard_ns = now_ns;
    fetch->bytes += reply->attachment;
    if (fetch->bytes.size() > kMaxPluginBytes)
      return fetch->fetched(Error{Code::kInvalidArgument, "the manager sent more than a plugin may have", ""});
    // An earlier manager sends all of it at once.
    if (reply->attachment.size() != kPieceBytes) return fetch->fetched(std::move(fetch->bytes));
    fetch_piece(fetch);
  });
}

void ManagerLink::fetch_state(const bus::FetchState& wish, std::function<void(Result<FilePiece>)> answer) {
  await(requester_->send(wish), kAskNs, [this, wish, answer = std::move(answer)](const Result<bus::Message>& reply) {
    if (!reply.ok()) return fetch_state(wish, answer);  // what the manager's absence is to the task, its orders say
    if (reply->error) return answer(*reply->error);
    auto piece = reply->as<bus::FileReply>();
    if (!piece.ok()) return answer(piece.error());
    answer(FilePiece{std::move(*piece), reply->attachment});
  });
}

void ManagerLink::ask_ended(const std::string& task, std::function<void(bool ended)> answer) {
  if (!registered_) return answer(false);
  await(requester_->send(bus::ShowTask{task}), kAskNs, [answer = std::move(answer)](const Result<bus::Message>& reply) {
    if (!reply.ok()) return answer(false);
    if (reply->error) return answer(false);  // "not found" is no verdict: its database may be another one
    const auto shown = reply->as<bus::TaskReply>();
    answer(shown.ok() && !shown->task.state.verdict.kind.empty());
  });
}

void ManagerLink::await(const std::string& id, int64_t patience_ns, Answered done) {
  Question& question = questions_[id];
  question.done = std::move(done);
  question.patience = loop_.at(SteadyClock::now() + patience_ns, [this, id] {
    auto node = questions_.extract(id);
    node.mapped().done(Error{Code::kTimeout, "the manager did not answer", ""});
  });
}

void ManagerLink::receive() {
  if (requester_ == nullptr) return;
  // Twice until there is nothing: the first call may have been the one that noticed a new connection, and what waited
  // for that connection to be sent goes with the next.
  for (int empty = 0; empty < 2;) {
    auto message = requester_->receive(std::chrono::milliseconds(0));
    if (!message) {
      ++empty;
    } else if (message->is_reply) {
      on_reply(*message);
    } else {
      on_request(*message);
    }
  }
}

void ManagerLink::on_reply(const bus::Message& message) {
  heard_ns_ = SteadyClock::now();
  if (const auto it = questions_.find(message.id); it != questions_.end()) {
    loop_.cancel(it->second.patience);
    auto node = questions_.extract(it);
    node.mapped().done(message);
    return;
  }
  if (std::find(registrations_.begin(), registrations_.end(), message.id) != registrations_.end()) {
    if (message.error) {
      warn_once("the manager refused this worker: " + message.error->text());
      return;
    }
    auto plan = message.as<bus::WorkerPlan>();
    if (!plan.ok()) {
      spdlog::warn("the manager's plan cannot be read: {}", plan.error().text());
      return;
    }
    registrations_.clear();
    said_.clear();
    registered_ = true;
    registration_pause_ns_ = kFirstPauseNs;
    spdlog::info("{} with the manager at {}", std::exchange(was_registered_, true) ? "registered again" : "registered",
                 endpoint_);
    if (plan->heard == 0) spdlog::warn("the manager is of an earlier version: its orders do not expire");
    take_plan(*plan);
    host_.registered();
    loop_.cancel(std::exchange(timer_, 0));
    schedule(heard_ns_ + kSoonNs);
    return;
  }
  if (message.command != bus::WorkerReport::kCommand) return;
  const bool latest = message.id == report_id_;
  if (latest) report_id_.clear();
  if (!message.error) {
    // An answer that was only slow renews as well, from when its report was sent. An earlier manager's holds nothing.
    const auto plan = message.as<bus::WorkerPlan>();
    if (plan.ok() && plan->heard != 0) {
      take_plan(*plan);
    } else if (latest) {
      host_.reported();
    }
  } else if (latest) {
    if (message.error->code == Code::kNotFound) {
      lose("the manager does not know this worker");
      loop_.cancel(std::exchange(timer_, 0));
      tick();
    } else {
      warn_once("the manager refused a report: " + message.error->text());
    }
  }
}

void ManagerLink::acknowledge(const bus::Message& request, const Status& status) {
  if (status.ok()) {
    requester_->reply(request, bus::Ack{});
  } else {
    requester_->reply_error(request, status.error());
  }
}

void ManagerLink::on_request(const bus::Message& message) {
  heard_ns_ = SteadyClock::now();
  const auto handle = [&]<class Command>(Status (Host::*call)(const Command&)) {
    auto command = message.as<Command>();
    acknowledge(message, command.ok() ? (host_.*call)(*command) : Status(command.error()));
  };
  const auto answer = [&](Result<FilePiece> piece) {
    if (!piece.ok()) return requester_->reply_error(message, piece.error());
    requester_->reply(message, piece->reply, std::move(piece->bytes));
  };
  if (message.command == bus::CreateTask::kCommand) {
    handle(&Host::on_create);
  } else if (message.command == bus::ReplaceTask::kCommand) {
    handle(&Host::on_replace);
  } else if (message.command == bus::TaskOrder::kCommand) {
    handle(&Host::on_order);
  } else if (message.command == bus::WorkerPlan::kCommand) {
    auto plan = message.as<bus::WorkerPlan>();
    if (plan.ok()) take_plan(*plan);
    acknowledge(message, plan.ok() ? Status() : Status(plan.error()));
  } else if (message.command == bus::GetLog::kCommand) {
    auto command = message.as<bus::GetLog>();
    auto log = command.ok() ? host_.on_log(*command) : Result<bus::LogReply>(command.error());
    if (log.ok()) {
      requester_->reply(message, *log);
    } else {
      requester_->reply_error(message, log.error());
    }
  } else if (message.command == bus::GetFile::kCommand) {
    auto command = message.as<bus::GetFile>();
    answer(command.ok() ? host_.on_file(*command) : Result<FilePiece>(command.error()));
  } else if (message.command == bus::GetState::kCommand) {
    auto command = message.as<bus::GetState>();
    answer(command.ok() ? host_.on_state(*command) : Result<FilePiece>(command.error()));
  } else if (message.command == bus::GetPlugin::kCommand) {
    auto command = message.as<bus::GetPlugin>();
    answer(command.ok() ? host_.on_plugin(*command) : Result<FilePiece>(command.error()));
  } else {
    requester_->reply_error(message, Error{Code::kVersion, "this worker knows no command '" + message.command + "'",
                                           "use a manager and workers of one version"});
  }
}

}  // namespace freeride::worker
