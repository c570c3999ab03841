#include "helper.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/pages/handover.hpp"

namespace freeride::hooks {
namespace {
constexpr int64_t kFirstRetry = 20 * kNsPerMs;       // a socket's name appears a moment before it listens
constexpr int64_t kSlowRetry = 5 * kNsPerSec;        // where inotify sees nothing: no run folder yet, a full backlog
constexpr int64_t kAnswerPatience = 10 * kNsPerSec;  // then it is said that the worker is silent
constexpr int64_t kRankLook = kNsPerSec;
constexpr size_t kOwn = 4;                        // descriptors that are polled before those of ranks
constexpr int64_t kPhaseLook = 200 * kNsPerUs;    // while a GPU is on its way to an idle phase
constexpr int64_t kReleasedLook = 50 * kNsPerMs;  // while a GPU may still write what it was told before
}  // namespace

Status Helper::start() {
  for (const auto& folder : Paths::run_dirs(config_.run_dir)) run_dirs_.push_back(folder.string());
  socket_name_ = Paths().worker_socket(config_.device).filename().string();
  event_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) return errno_error("cannot make an event descriptor", errno);
  inotify_ = Fd(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));  // without it: the slow timer
  // The trainer's signals are the trainer's: none is delivered to this thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  const int err = pthread_create(&thread_, &attributes, entry, this);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (err != 0) return errno_error("cannot start the helper thread", err);
  running_ = true;
  return {};
}

void Helper::stop() {
  if (!running_) return;
  running_ = false;
  stopping_.store(true);
  look();
  if (pthread_equal(pthread_self(), thread_) == 0) pthread_join(thread_, nullptr);
  const std::lock_guard lock(descriptors_);
  socket_.reset();
  inotify_.reset();
}

void Helper::look() {
  const uint64_t one = 1;
  if (write(event_.get(), &one, sizeof(one)) < 0) {
    // Only a full counter can refuse it, and then the thread wakes as well.
  }
}

void Helper::drop_in_child() {
  // Only close(2): whatever else the child may do safely here, it need not.
  for (Fd* fd : {&event_, &inotify_, &socket_}) {
    if (fd->valid()) close(fd->release());
  }
  if (sent_ != nullptr) sent_->drop_descriptors();
}

void* Helper::entry(void* self) {
  auto* helper = static_cast<Helper*>(self);
  prctl(PR_SET_NAME, "freeride-hook");
  try {
    helper->loop();
  } catch (const std::exception& error) {
    if (helper->config_.failed != nullptr) helper->config_.failed(helper->config_.context, error.what());
  }
  return nullptr;
}

void Helper::loop() {
  if (config_.external_marks) prctl(PR_SET_TIMERSLACK, 1000UL);
  int64_t next_rank_look = 0;
  std::vector<pollfd> polled;
  while (!stopping_.load()) {
    int64_t now = SteadyClock::now();
    if (!socket_.valid() && now >= next_try_ns_) connect_now(now);
    if (sent_ != nullptr && now >= next_rank_look) {
      const std::lock_guard lock(descriptors_);
      sent_->look_for_ranks();
      sent_->release_again();
      if (streams_ != nullptr && !page_.is_on()) streams_->let_go();
      next_rank_look = now + (streams_ != nullptr && sent_->released() ? kReleasedLook : kRankLook);
    }
    if (asked_ns_ != 0 && now >= asked_ns_ + kAnswerPatience) {
      asked_ns_ = 0;  // what comes later counts all the same
      say_unattached("the worker of " + config_.device + " has not answered for 10 s; see whether it is stopped");
    }
    int64_t until = INT64_MAX;
    if (!socket_.valid()) until = next_try_ns_;
    if (asked_ns_ != 0) until = std::min(until, asked_ns_ + kAnswerPatience);
    if (sent_ != nullptr) until = std::min(until, next_rank_look);
    if (config_.external_marks) {
      page_.observe(now);
      if (phases_ != nullptr) phases_->observe(now);
      if (streams_ != nullptr && streams_->watch(now) && config_.say != nullptr) {
        config_.say("a receive was held for too long, and is posted as without the hook");
      }
      if (streams_ != nullptr) until = std::min(until, streams_->tend_remote(now));
      until = std::min(until, page_.next_look(now, connected_.load(std::memory_order_relaxed)));
      if (phases_ != nullptr && phases_->awaits_gpu()) until = std::min(until, now + kPhaseLook);
    }
    polled.clear();
    polled.push_back({event_.get(), POLLIN, 0});
    polled.push_back({socket_.valid() ? -1 : inotify_.get(), POLLIN, 0});
    polled.push_back({socket_.get(), POLLIN, 0});
    polled.push_back({streams_ == nullptr ? -1 : streams_->remote_socket(), POLLIN, 0});
    if (sent_ != nullptr) {
      for (const int fd : sent_->pidfds()) polled.push_back({fd, POLLIN, 0});
    }
    timespec timeout{};
    if (until != INT64_MAX) {
      const int64_t left = std::max<int64_t>(until - SteadyClock::now(), 0);
      timeout = {left / kNsPerSec, left % kNsPerSec};
    }
    const int ready = ppoll(polled.data(), polled.size(), until == INT64_MAX ? nullptr : &timeout, nullptr);
    if (ready <= 0) continue;
    now = SteadyClock::now();
    uint64_t looks = 0;
    if (polled[0].revents != 0 && read(event_.get(), &looks, sizeof(looks)) < 0)
      continue;  // nothing is there after all
    if (polled[1].revents != 0 && read_directory_events()) {
      next_try_ns_ = now;
      backoff_ns_ = 0;
    }
    if (polled[2].revents != 0) read_reply(now);
    for (size_t i = polled.size(); i-- > kOwn;) {  // from the end: a dead rank's entry is erased
      if (polled[i].revents == 0) continue;
      const std::lock_guard lock(descriptors_);
      sent_->rank_died(i - kOwn);
    }
  }
}

void Helper::watch_directories() {
  if (!inotify_.valid()) return;
  // Again at every try: a folder may have been made, or removed and made anew. Adding it twice is one watch.
  for (const auto& folder : run_dirs_)
    inotify_add_watch(inotify_.get(), folder.c_str(), IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
}

bool Helper::read_directory_events() {
  alignas(inotify_event) std::array<char, 4096> buffer;
  bool ours = false;
  for (int rounds = 0; rounds < 64; ++rounds) {  // bounded: whoever floods the folder must not keep this thread busy
    const ssize_t got = read(inotify_.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    for (ssize_t at = 0; at + static_cast<ssize_t>(sizeof(inotify_event)) <= got;) {
      inotify_event event;
      std::memcpy(&event, buffer.data() + at, sizeof(event));
      const char* name = buffer.data() + at + sizeof(event);
      if ((event.mask & IN_Q_OVERFLOW) != 0 || (event.len > 0 && socket_name_ == name)) ours = true;
      at += static_cast<ssize_t>(sizeof(event) + event.len);
    }
  }
  return ours;
}

void Helper::connect_now(int64_t now_ns) {
  const std::lock_guard lock(descriptors_);
  if (stopping_.load()) return;
  watch_directories();  // before the try: a socket that appears in between is seen by one of them
  backoff_ns_ = backoff_ns_ == 0 ? kFirstRetry : std::min(backoff_ns_ * 2, kSlowRetry);
  // With a watch, a missing socket needs no timer but the slow one.
  next_try_ns_ = now_ns + kSlowRetry;
  std::string why;
  for (const auto& folder : run_dirs_) {
    auto socket = pages::connect_to_worker(folder + "/" + socket_name_);
    if (socket.ok()) {
      next_try_ns_ = now_ns + backoff_ns_;
      char first = 0;  // refused before it was asked?
      if (!pages::send_hello(socket->get(), page_.fd()).ok() &&
          recv(socket->get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
        return;
      socket_ = std::move(*socket);
      asked_ns_ = now_ns;
      return;
    }
    const Code code = socket.error().code;
    if (code == Code::kNotFound) continue;
    next_try_ns_ = now_ns + backoff_ns_;
    // Not a worker's socket, or not for this user: that does not mend itself, and nobody else would say it. A worker
    // that is busy, only if it stays so.
    const bool lasting = code == Code::kPermission || (code == Code::kExhausted && backoff_ns_ == kSlowRetry);
    if (lasting && why.empty()) why = socket.error().text();
  }
  if (!why.empty()) say_unattached(why);
}

void Helper::say_unattached(const std::string& why) {
  if (!std::exchange(said_, true) && config_.say != nullptr) config_.say(why);
}

void Helper::disconnect(int64_t now_ns, int64_t retry_ns) {
  page_.ring_none();
  const std::lock_guard lock(descriptors_);
  socket_.reset();
  asked_ns_ = 0;
  connected_.store(false, std::memory_order_release);
  next_try_ns_ = now_ns + retry_ns;
}

void Helper::read_reply(int64_t now_ns) {
  char text[pages::kMaxReplyBytes + 1];
  Fd bell;
  ssize_t got = pages::receive_reply(socket_.get(), text, sizeof(text) - 1, bell);
  // It was closed before it was read from; what it said before that comes next.
  if (got < 0 && errno == ECONNRESET) got = pages::receive_reply(socket_.get(), text, sizeof(text) - 1, bell);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {  // the worker is gone
    const bool was_connected = connected_.load();
    if (was_connected) backoff_ns_ = 0;
    disconnect(now_ns, was_connected ? kFirstRetry : std::max(backoff_ns_, kFirstRetry));
    return;
  }
  if (!connected_.load() && std::string_view(text, static_cast<size_t>(got)) == "OK") {
    // A worker looks by itself at the page of a hook that does not ring.
    if (bell.valid() && !page_.ring(bell.get()).ok()) page_.ring_none();
    connected_.store(true, std::memory_order_release);
    backoff_ns_ = asked_ns_ = 0;
    said_ = false;
    return;
  }
  // A refusal, or a worker that talks when it should be silent: slowly, for its successor may be wiser.
  std::string said = "the worker of " + config_.device + " does not take the page: ";
  for (ssize_t i = 0; i < got; ++i) said += static_cast<unsigned char>(text[i]) < 0x20 ? ' ' : text[i];
  say_unattached(said);
  disconnect(now_ns, kSlowRetry);
}

}  // namespace freeride::hooks
