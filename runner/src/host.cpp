#include "host.hpp"

#include <poll.h>
#include <unistd.h>

#include <cstring>

#include "freeride/base/clock.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::runner {
namespace {

const char* level_name(int32_t level) {
  switch (level) {
    case FREERIDE_LOG_DEBUG:
      return "debug";
    case FREERIDE_LOG_WARN:
      return "warn";
    case FREERIDE_LOG_ERROR:
      return "error";
    default:
      return "info";
  }
}

// Room for a line of at most PIPE_BUF bytes: then a write of it cannot block. (O_NONBLOCK would change the plugin's own
// stdout too.)
bool has_room(int fd) {
  pollfd poll_fd{fd, POLLOUT, 0};
  return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & (POLLERR | POLLHUP | POLLNVAL)) == 0;
}

Host& self(void* context) {
  return *static_cast<Host*>(context);
}

constexpr freeride_yield kYield{
    sizeof(freeride_yield), 0, [](void* context) { return self(context).yield_point(); },
    [](void* context, freeride_status (*wait)(void*, int32_t), void* argument) {
      return self(context).yield_queued([=](bool all) { return wait(argument, all ? 1 : 0); });
    }};
constexpr freeride_gate kGate{sizeof(freeride_gate), 0, [](void* context) { return self(context).pass_gate(); }};

}  // namespace

freeride_status Host::yield_point() {
  return yield_ ? yield_() : FREERIDE_OK;
}

freeride_status Host::yield_queued(const Wait& wait) {
  return yield_queued_ ? yield_queued_(wait) : wait(true);
}

freeride_status Host::pass_gate() {
  return gate_ ? gate_() : FREERIDE_OK;
}

Host::Host(freeride_answer_page& answer, int log_fd) : answer_(answer), log_fd_(log_fd) {
  line_.reserve(kLogLineBytes + 64);
  table_.struct_size = sizeof(table_);
  table_.abi_version = FREERIDE_ABI_VERSION;
  table_.context = this;
  table_.log = [](void* context, int32_t level, const char* text) { self(context).log(level, text); };
  table_.metric = [](void* context, const char* name, double value) { self(context).metric(name, value); };
  table_.fail = [](void* context, const char* text) { self(context).fail(text); };
  table_.now_ns = [](void*) { return SteadyClock::now(); };
  table_.extension = [](void*, const char* name) -> const void* {
    if (name == nullptr) return nullptr;
    if (strcmp(name, FREERIDE_EXTENSION_YIELD) == 0) return &kYield;
    return strcmp(name, FREERIDE_EXTENSION_IMPERATIVE) == 0 ? &kGate : nullptr;
  };
}

void Host::log(int32_t level, const char* text) {
  if (text == nullptr) return;
  const std::lock_guard lock(log_mutex_);
  if (!has_room(log_fd_)) {
    ++dropped_;
    return;
  }
  line_.clear();
  if (dropped_ > 0) line_ += "warn " + std::to_string(dropped_) + " log lines dropped: nobody read them\n";
  line_ += level_name(level);
  line_ += ' ';
  const size_t length = strnlen(text, kLogLineBytes);
  const size_t begin = line_.size();
  line_.append(text, length);
  // One call, one line.
  for (size_t i = begin; i < line_.size(); ++i) {
    if (line_[i] == '\n' || line_[i] == '\r') line_[i] = ' ';
  }
  line_ += '\n';
  if (write(log_fd_, line_.data(), line_.size()) == static_cast<ssize_t>(line_.size())) dropped_ = 0;
}

void Host::metric(const char* name, double value) {
  if (name == nullptr || *name == '\0') return;
  const std::lock_guard lock(metric_mutex_);
  constexpr size_t kName = sizeof(freeride_metric::name);
  for (uint32_t i = 0; i < metrics_; ++i) {
    freeride_metric& metric = answer_.metrics[i];
    if (strncmp(metric.name, name, kName - 1) == 0) {
      __atomic_store(&metric.value, &value, __ATOMIC_RELAXED);
      return;
    }
  }
  if (metrics_ == FREERIDE_METRICS) {
    if (!too_many_) log(FREERIDE_LOG_WARN, "more than 8 metrics: the later ones are not shown");
    too_many_ = true;
    return;
  }
  // Value first, name last: a reader that sees the name sees a value.
  freeride_metric& metric = answer_.metrics[metrics_++];
  __atomic_store(&metric.value, &value, __ATOMIC_RELAXED);
  const size_t length = strnlen(name, kName - 1);
  std::memcpy(metric.name + 1, name + 1, length - 1);
  pages::store_release(metric.name[0], name[0]);
}

void Host::fail(const char* text) {
  if (text == nullptr) text = "";
  const size_t length = strnlen(text, reason_.size() - 1);
  std::memcpy(reason_.data(), text, length);
  reason_[length] = '\0';
}

std::string Host::take_reason() {
  std::string reason(reason_.data());
  reason_[0] = '\0';
  return reason;
}

}  // namespace freeride::runner
