#include "describe.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"

namespace freeride::runner {
namespace {

using nlohmann::json;

constexpr size_t kLongestAnswer = 1 << 20;

json to_json(const freeride_plugin& table) {
  json params = json::array();
  for (uint32_t i = 0; i < table.param_count; ++i) {
    const freeride_param_spec& spec = table.params[i];
    params.push_back({{"key", spec.key}, {"default", spec.default_value}, {"help", spec.help}});
  }
  return {{"name", table.name},
          {"version", table.version},
          {"summary", table.summary},
          {"abi_version", table.abi_version},
          {"params", std::move(params)}};
}

// In the child: one JSON object into the pipe.
[[noreturn]] void answer(const std::string& path, const Params& given, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // What the plugin prints while it is loaded is no part of the answer.
  dup2(STDERR_FILENO, STDOUT_FILENO);
  json message;
  try {
    auto plugin = open_plugin(path, given);
    if (plugin.ok()) {
      message = to_json(*plugin);
    } else {
      message = {
          {"code", to_string(plugin.error().code)}, {"error", plugin.error().message}, {"hint", plugin.error().hint}};
    }
  } catch (const std::exception& error) {
    message = {{"code", "invalid_argument"}, {"error", std::string("loading it threw ") + error.what()}, {"hint", ""}};
  } catch (...) {
    message = {{"code", "invalid_argument"}, {"error", "loading it threw"}, {"hint", ""}};
  }
  (void)write_all(out, message.dump(-1, ' ', false, json::error_handler_t::replace));
  _exit(EXIT_SUCCESS);
}

// Everything the child says, until it closes the pipe, says too much, or takes too long.
std::string listen(int in, int timeout_s) {
  const int64_t until_ns = SteadyClock::now() + timeout_s * kNsPerSec;
  std::string text;
  char part[4096];
  for (;;) {
    const int64_t left_ms = (until_ns - SteadyClock::now()) / kNsPerMs;
    pollfd readable{in, POLLIN, 0};
    if (left_ms <= 0 || poll(&readable, 1, static_cast<int>(left_ms)) == 0) return text;
    const ssize_t length = read(in, part, sizeof(part));
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0 || text.size() > kLongestAnswer) return text;
    text.append(part, static_cast<size_t>(length));
  }
}

}  // namespace

Result<Description> describe_plugin(const std::string& path, const Params& given, int timeout_s) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  const Fd in(fds[0]);
  Fd out(fds[1]);
  std::cout.flush();
  const pid_t pid = fork();
  if (pid < 0) return errno_error("cannot fork", errno);
  if (pid == 0) answer(path, given, out.get());
  out.reset();
  const std::string text = listen(in.get(), timeout_s);
  kill(pid, SIGKILL);  // it has said what it had to say
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const json message = json::parse(text, nullptr, false);
  if (!message.is_object()) {
    std::string how = "loading the plugin does not end";
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
      how = "loading the plugin ends its process by signal " + std::to_string(WTERMSIG(status));
    } else if (WIFEXITED(status)) {
      how = "loading the plugin ends its process with code " + std::to_string(WEXITSTATUS(status));
    }
    return Error{Code::kInvalidArgument, how, "look at its static constructors and its freeride_plugin_v1()"};
  }
  if (message.contains("error")) {
    return Error{code_from_string(message.value("code", "internal")), message.value("error", ""),
                 message.value("hint", "")};
  }
  Description description;
  description.name = message.value("name", "");
  description.version = message.value("version", "");
  description.summary = message.value("summary", "");
  for (const json& param : message.value("params", json::array())) {
    description.params.push_back({param.value("key", ""), param.value("default", ""), param.value("help", "")});
  }
  return description;
}

bool describe(const std::string& path, const Params& given, const std::string& format) {
  auto description = describe_plugin(path, given);
  if (!description.ok()) {
    std::cerr << "freeride-runner: " << description.error().text() << "\n";
    return false;
  }
  if (format == "json") {
    json params = json::array();
    for (const auto& param : description->params) {
      params.push_back({{"key", param.key}, {"default", param.default_value}, {"help", param.help}});
    }
    std::cout << json{{"name", description->name},
                      {"version", description->version},
                      {"summary", description->summary},
                      {"params", params}}
                     .dump(2)
              << "\n";
    return true;
  }
  std::cout << description->name << " " << description->version << ": " << description->summary << "\n";
  for (const auto& param : description->params) {
    std::cout << "  --param " << param.key << "=" << param.default_value << "   " << param.help << "\n";
  }
  return true;
}

}  // namespace freeride::runner
