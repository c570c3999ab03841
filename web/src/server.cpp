#include "server.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "connection.hpp"
#include "freeride/base/daemon_thread.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/log.hpp"
#include "metrics.hpp"
#include "page.hpp"

namespace freeride::web {
namespace {

// script and style are files of this server's own; nothing else can be loaded, framed or sent anywhere.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
constexpr const char* kBusy =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n";

// How many threads answer now, and what runs on each: cpp-httplib hands over one connection at a time.
class Threads : public httplib::TaskQueue {
 public:
  explicit Threads(size_t most) : most_(most) {}
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));  // void, or bool since 0.18
  // A connection beyond the bound is turned away where it was accepted: that takes no waiting.
  Enqueued enqueue(std::function<void()> answer) override {
    if (!start_within_bound(answer)) {
      turned_away = true;
      answer();
      turned_away = false;
    }
    return static_cast<Enqueued>(true);
  }
  void shutdown() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return running_ == 0; });
  }
  static thread_local bool turned_away;

 private:
  bool start_within_bound(const std::function<void()>& answer) {
    const std::lock_guard lock(mutex_);
    return running_ < most_ && start(answer);
  }
  bool start(const std::function<void()>& answer) try {
    std::thread([this, answer] {
      answer();
      const std::lock_guard end(mutex_);
      --running_;
      ended_.notify_all();
    }).detach();
    ++running_;
    return true;
  } catch (const std::system_error&) {
    return false;  // the host has no more threads for this program
  }

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t running_ = 0;
};
thread_local bool Threads::turned_away = false;

class BoundedServer : public httplib::Server {
 public:
  explicit BoundedServer(const ServerConfig& config) : config_(config) {}

  /// From now on no connection waits for a request; those that do are ended.
  void end_connections() {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    for (const int socket : open_) ::shutdown(socket, SHUT_RDWR);
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    const Fd owner(socket);
    if (Threads::turned_away) {
      (void)send(socket, kBusy, std::char_traits<char>::length(kBusy), MSG_NOSIGNAL | MSG_DONTWAIT);
      return false;
    }
    {
      const std::lock_guard lock(mutex_);
      if (ending_) return false;
      open_.insert(socket);
    }
    Connection connection(socket, {config_.request_time, config_.write_time, 32 << 10});
    bool closed = false;
    // A compressed stream would be held back until there is enough of it.
    const auto plain = [](httplib::Request& request) { request.headers.erase("Accept-Encoding"); };
    const auto process = [&](auto& server) {
      if constexpr (requires { server.process_request(connection, false, closed, plain); }) {
        return server.process_request(connection, false, closed, plain);
      } else {  // since 0.18
        std::string remote, local;
        int remote_port = 0, local_port = 0;
        connection.get_remote_ip_and_port(remote, remote_port);
        connection.get_local_ip_and_port(local, local_port);
        return server.process_request(connection, remote, remote_port, local, local_port, false, closed, plain);
      }
    };
    while (!closed && connection.wait_for_request(config_.idle_time) && process(*this)) {
    }
    const std::lock_guard lock(mutex_);
    open_.erase(socket);
    return true;
  }

  const ServerConfig& config_;
  std::mutex mutex_;
  std::set<int> open_;
  bool ending_ = false;
};

void answer(httplib::Response& response, int status, const std::string& text) {
  response.status = status;
  response.set_content(text + "\n", "text/plain; charset=utf-8");
}

}  // namespace

struct Server::Impl {
  Impl(ServerConfig given, Content what) : config(std::move(given)), content(std::move(what)), http(config) {}

  httplib::Server::HandlerResponse admit(const httplib::Request& request, httplib::Response& response) const {
    using Next = httplib::Server::HandlerResponse;
    if (request.get_header_value_count("Host") != 1 ||
        !is_own_host(request.get_header_value("Host"), config.listen, config.names)) {
      answer(response, 421, "this server is not called that; name it with --host");
      return Next::Handled;
    }
    // Whatever the method: a body would be read for nothing.
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", "GET, HEAD");
      response.set_header("Connection", "close");
      answer(response, 405, "only GET and HEAD are answered");
      return Next::Handled;
    }
    if (!config.token.empty() && !carries_token(request.get_header_value("Authorization"), config.token)) {
      response.set_header("WWW-Authenticate", "Basic realm=\"FreeRide: any name, and the token as the password\"");
      answer(response, 401, "a token is needed: as the password, or as Authorization: Bearer TOKEN");
      return Next::Handled;
    }
    // A page of somebody else's may link here, but not use up viewers.
    if (request.get_header_value("Sec-Fetch-Site") == "cross-site" &&
        request.get_header_value("Sec-Fetch-Mode") != "navigate") {
      answer(response, 403, "other sites' pages are not answered");
      return Next::Handled;
    }
    return Next::Unhandled;
  }

  void live(httplib::Response& response) {
    auto viewer = content.join();
    if (!viewer) return answer(response, 503, "too many pages are open");
    response.set_header("X-Accel-Buffering", "no");  // proxies are to hand each frame on
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, viewer](size_t, httplib::DataSink& sink) {
          const Frame frame = viewer->take(config.heartbeat);
          if (viewer->ended()) return false;
          const std::string text = frame ? "data: " + *frame + "\n\n" : ": nothing happens\n\n";
          return sink.write(text.data(), text.size());
        },
        [this, viewer](bool) { content.leave(viewer); });
  }

  void declare() {
    http.set_default_headers({{"Content-Security-Policy", kPolicy},
                              {"X-Content-Type-Options", "nosniff"},
                              {"Referrer-Policy", "no-referrer"},
                              {"Cross-Origin-Opener-Policy", "same-origin"},
                              {"Cross-Origin-Resource-Policy", "same-origin"},
                              {"Cache-Control", "no-store"}});
    http.set_pre_routing_handler([this](const auto& request, auto& response) { return admit(request, response); });
    const auto file = [this](const char* path, std::string_view text, const char* type) {
      http.Get(path,
               [text, type](const auto&, auto& response) { response.set_content(text.data(), text.size(), type); });
    };
    file("/", kPageHtml, "text/html; charset=utf-8");
    file("/page.js", kPageScript, "text/javascript; charset=utf-8");
    file("/page.css", kPageStyle, "text/css; charset=utf-8");
    file("/icon.svg", kPageIcon, "image/svg+xml");
    http.Get("/live", [this](const auto&, auto& response) { live(response); });
    http.Get("/metrics", [this](const auto& request, auto& response) {
      const bool open = wants_open_metrics(request.get_header_value("Accept"));
      response.set_content(content.metrics(open), open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                                       : "text/plain; version=0.0.4; charset=utf-8");
    });
    http.set_error_handler([](const auto&, auto& response) {
      if (response.body.empty()) answer(response, response.status, "there is nothing here");
    });
    http.set_exception_handler([](const auto&, auto& response, std::exception_ptr) {
      answer(response, 500, "freeride-web could not make the answer");
    });
    http.set_payload_max_length(4096);
    http.set_keep_alive_timeout(1);
    // Not cpp-httplib's own SO_REUSEPORT, with which two of these would share a port.
    http.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    http.new_task_queue = [this] { return new Threads(config.connections); };
  }

  Status bind_local() {
    const std::string& path = config.listen.host;
    const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!probe.valid()) return errno_error("cannot make a socket for " + path, errno);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const bool reached = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (reached || errno == EAGAIN)  // so many wait before it that nobody else may
      return Error{Code::kAlreadyExists, "somebody listens at " + path + " already", "choose another path"};
    const bool deserted = errno == ECONNREFUSED;
    struct stat info {};
    if (deserted && ::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) ::unlink(path.c_str());
    http.set_address_family(AF_UNIX);
    const mode_t before = umask(0117);  // 0660: the socket's user and group
    const bool bound = http.bind_to_port(path, 80);
    umask(before);
    if (!bound) return Error{Code::kPermission, "no socket can be made at " + path, "choose another path"};
    return {};
  }

  Status bind() {
    const Listen& listen = config.listen;
    if (listen.local_socket) return bind_local();
    port = listen.port == 0 ? http.bind_to_any_port(listen.host) : listen.port;
    if (port > 0 && (listen.port == 0 || http.bind_to_port(listen.host, listen.port))) return {};
    return Error{Code::kAlreadyExists,
                 "cannot listen at " + listen.host + ":" + std::to_string(listen.port) + ": " + errno_text(),
                 "choose another port with --listen"};
  }
  static std::string errno_text() { return std::generic_category().message(errno); }

  const ServerConfig config;
  const Content content;
  BoundedServer http;
  int port = 0;
  std::thread thread;
};

Server::Server() = default;

Server::~Server() {
  if (!impl_ || !impl_->thread.joinable()) return;
  impl_->http.end_connections();
  impl_->http.stop();
  impl_->thread.join();
  if (impl_->config.listen.local_socket) ::unlink(impl_->config.listen.host.c_str());
}

Result<std::unique_ptr<Server>> Server::start(ServerConfig config, Content content) {
  std::unique_ptr<Server> server(new Server);
  server->impl_ = std::make_unique<Impl>(std::move(config), std::move(content));
  Impl& impl = *server->impl_;
  impl.declare();
  if (auto bound = impl.bind(); !bound) return bound.error();
  impl.thread = std::thread([&impl] {
    run_or_end("the web server", [&impl] {
      if (!impl.http.listen_after_bind()) throw std::runtime_error("cannot take connections any more");
    });
  });
  // stop() before the loop has begun would be lost.
  while (!impl.http.is_running()) std::this_thread::yield();
  return server;
}

int Server::port() const {
  return impl_->port;
}

std::string Server::address() const {
  const Listen& listen = impl_->config.listen;
  if (listen.local_socket) return "unix:" + listen.host;
  const bool six = listen.host.find(':') != listen.host.npos;
  return "http://" + (six ? "[" + listen.host + "]" : listen.host) + ":" + std::to_string(impl_->port) + "/";
}

}  // namespace freeride::web
