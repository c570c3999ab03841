// ManagerLink: registers with the manager, reports, and hands on what it orders. Its absence changes nothing here but
// the reports.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "freeride/base/result.hpp"
#include "freeride/bus/sockets.hpp"
#include "freeride/policy/orders.hpp"
#include "loop/loop.hpp"
#include "tasks/task_data.hpp"

namespace freeride::worker {

/// Main thread. Nothing here waits for the manager.
class ManagerLink {
 public:
  /// Who reports, and takes orders. It outlives this.
  class Host {
   public:
    virtual ~Host() = default;
    virtual bus::RegisterWorker registration() = 0;
    virtual bus::WorkerReport report() = 0;  ///< and forget what is reported only once
    virtual void reported() = 0;             ///< the last one has arrived, at a manager that settles nothing itself
    virtual void registered() = 0;           ///< for what has to be said again to a new manager
    virtual void on_plan(const bus::WorkerPlan& plan) = 0;  ///< also with every answer to a report
    virtual Status on_create(const bus::CreateTask& spec) = 0;
    virtual Status on_replace(const bus::ReplaceTask& replace) = 0;
    virtual Status on_order(const bus::TaskOrder& order) = 0;
    virtual Result<bus::LogReply> on_log(const bus::GetLog& wish) = 0;
    virtual Result<FilePiece> on_file(const bus::GetFile& wish) = 0;
    virtual Result<FilePiece> on_state(const bus::GetState& wish) = 0;
    virtual Result<FilePiece> on_plugin(const bus::GetPlugin& wish) = 0;
  };
  /// `fetched` gets the bytes, or the error.
  using Fetched = std::function<void(Result<std::string>)>;

  ManagerLink(zmq::context_t& context, std::string endpoint, Loop& loop, Host& host);
  ~ManagerLink();

  /// Errors: the endpoint is no address.
  Status start();
  /// Reports soon (within kSoonNs) instead of at the next heartbeat.
  void report_soon();
  /// Reports within kAtOnceNs: a device has nothing to do until the manager knows.
  void report_at_once();
  /// Asks for a plugin's content.
  void fetch(const std::string& sha256, Fetched fetched);
  /// Asks for a piece of a state that another worker has.
  void fetch_state(const bus::FetchState& wish, std::function<void(Result<FilePiece>)> answer);
  /// Asks whether a task has ended for good. False where there is no answer, and where nobody has heard of it.
  void ask_ended(const std::string& task, std::function<void(bool ended)> answer);
  /// A last report; call once when going down.
  void leave();
  /// Takes what has arrived; after each turn of the loop, since the socket's descriptor shows edges only.
  void receive();
  bool registered() const { return registered_; }
  /// What an order is worth that names this registration or report (WorkerPlan::heard); 0: it never expires. Nothing:
  /// that was too long ago.
  std::optional<policy::OrderTerm> term_of(uint64_t heard) const;

 private:
  using Answered = std::function<void(const Result<bus::Message>&)>;
  struct Question {
    Answered done;
    Loop::Timer patience = 0;
  };
  struct Fetch {
    std::string sha256, bytes;
    int64_t heard_ns = 0;
    Fetched fetched;
  };
  void fetch_piece(const std::shared_ptr<Fetch>& fetch);
  void warn_once(const std::string& text);
  void await(const std::string& id, int64_t patience_ns, Answered done);
  void tick();
  void schedule(int64_t when_ns);
  void send_registration();
  void send_report();
  void on_reply(const bus::Message& message);
  void on_request(const bus::Message& message);
  void acknowledge(const bus::Message& request, const Status& status);
  void lose(const std::string& why);
  uint64_t next_number();
  void take_plan(const bus::WorkerPlan& plan);

  zmq::context_t& context_;
  const std::string endpoint_;
  Loop& loop_;
  Host& host_;
  std::unique_ptr<bus::Requester> requester_;
  bool registered_ = false;
  bool was_registered_ = false;
  int64_t heard_ns_ = 0;  // the last time the manager said anything
  int64_t last_report_ns_ = 0;
  const int64_t phase_ns_;  // of the heartbeats within their period
  int64_t registration_pause_ns_ = 0;
  std::vector<std::string> registrations_;  // request ids of attempts that may still be answered
  std::string report_id_;
  uint64_t number_ = 0;       // of the latest registration or report
  uint64_t heard_ = 0;        // of the latest that a plan has named
  std::deque<int64_t> sent_;  // CLOCK_BOOTTIME, of the latest ones: the last is of number_
  policy::OrderLimits limits_;
  std::string said_;                           // why the manager cannot be reached or refuses, as it was logged last
  std::map<std::string, Question> questions_;  // by request id
  Loop::Timer timer_ = 0;
  int64_t timer_at_ns_ = 0;
};

}  // namespace freeride::worker
