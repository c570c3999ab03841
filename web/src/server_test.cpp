#include "server.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "freeride/base/fd.hpp"

using namespace freeride;
using namespace freeride::web;

namespace {

struct Site {
  explicit Site(ServerConfig config = {}, Hub::Limits limits = {}) : hub(limits) {
    if (config.listen.host.empty()) config.listen = *parse_listen("127.0.0.1:0");
    auto made = Server::start(
        std::move(config),
        {[this] { return hub.add(std::make_shared<const std::string>("{}")); },
         [this](const auto& viewer) { hub.remove(viewer); },
         [](bool open_metrics) { return std::string("freeride_manager_up 1\n") + (open_metrics ? "# EOF\n" : ""); }});
    REQUIRE(made);
    server = std::move(*made);
  }
  ~Site() { hub.end(); }
  Hub hub;
  std::unique_ptr<Server> server;
};

Fd connect_to(int port, int receive_bytes = 0) {
  Fd fd(socket(AF_INET, SOCK_STREAM, 0));
  if (receive_bytes != 0) setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

void say(const Fd& fd, const std::string& text) {
  (void)send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

// Until `end` has come, or nobody sends any more.
std::string hear(const Fd& fd, const std::string& end = {}) {
  std::string text;
  char buffer[4096];
  while (true) {
    pollfd one{fd.get(), POLLIN, 0};
    if (poll(&one, 1, 60'000) <= 0) return text + "(nothing for a minute)";
    const ssize_t got = recv(fd.get(), buffer, sizeof buffer, 0);
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (!end.empty() && text.find(end) != text.npos) return text;
  }
}

std::string get(const Site& site, const std::string& path, const std::string& more = {},
                const std::string& host = "127.0.0.1", const std::string& method = "GET") {
  const Fd fd = connect_to(site.server->port());
  say(fd, method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + more + "\r\n");
  return hear(fd);
}

std::string status(const std::string& answer) {
  return answer.substr(0, 12);
}

}  // namespace

TEST_CASE("the page comes with a policy that lets nothing else in", "[web_server]") {
  Site site;
  const std::string page = get(site, "/");
  CHECK(status(page) == "HTTP/1.1 200");
  CHECK(page.find("Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self';") != page.npos);
  CHECK(page.find("unsafe") == page.npos);
  CHECK(page.find("<!doctype html>") != page.npos);
  CHECK(get(site, "/page.js").find("\r\nContent-Type: text/javascript") != std::string::npos);
  CHECK(get(site, "/page.css").find("\r\nContent-Type: text/css") != std::string::npos);
  const std::string text = get(site, "/metrics");
  CHECK(text.find("freeride_manager_up 1\n") != std::string::npos);
  CHECK(text.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n") != std::string::npos);
  const std::string open = get(site, "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
  CHECK(open.find("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n") != std::string::npos);
  CHECK(open.ends_with("# EOF\n"));
  CHECK(status(get(site, "/nothing")) == "HTTP/1.1 404");
  CHECK(status(get(site, "/../etc/passwd")) == "HTTP/1.1 404");
}

TEST_CASE("a name that somebody else has made mean this address is refused", "[web_server]") {
  ServerConfig config;
  config.names = {"monitor.example"};
  Site site(config);
  CHECK(status(get(site, "/metrics", "", "evil.example")) == "HTTP/1.1 421");
  CHECK(status(get(site, "/metrics", "", "evil.example:7473")) == "HTTP/1.1 421");
  CHECK(status(get(site, "/metrics", "", "127.0.0.1.evil.example")) == "HTTP/1.1 421");
  CHECK(status(get(site, "/metrics", "", "")) == "HTTP/1.1 421");
  CHECK(status(get(site, "/metrics", "Host: evil.example\r\n")) == "HTTP/1.1 421");
  for (const char* own : {"localhost", "LOCALHOST:7473", "127.0.0.1:80", "[::1]:7473", "monitor.example"})
    CHECK(status(get(site, "/metrics", "", own)) == "HTTP/1.1 200");
  CHECK(status(get(site, "/live", "Sec-Fetch-Site: cross-site\r\n")) == "HTTP/1.1 403");
}

TEST_CASE("with a token nothing is answered without it", "[web_server]") {
  ServerConfig config;
  config.token = "0123456789abcdef0123";
  Site site(config);
  for (const char* path : {"/", "/page.js", "/live", "/metrics", "/nothing"}) {
    CHECK(status(get(site, path)) == "HTTP/1.1 401");
    CHECK(status(get(site, path, "Authorization: Bearer 0123456789abcdef0124\r\n")) == "HTTP/1.1 401");
  }
  CHECK(status(get(site, "/metrics", "Authorization: Bearer 0123456789abcdef0123\r\n")) == "HTTP/1.1 200");
  // any:0123456789abcdef0123
  CHECK(status(get(site, "/", "Authorization: Basic YW55OjAxMjM0NTY3ODlhYmNkZWYwMTIz\r\n")) == "HTTP/1.1 200");
  CHECK(status(get(site, "/", "Authorization: Basic YW55OjAxMjM0NTY3ODlhYmNkZWYwMTI=\r\n")) == "HTTP/1.1 401");
  CHECK(status(get(site, "/", "Authorization: Basic !!!!\r\n")) == "HTTP/1.1 401");
  CHECK(status(get(site, "/", "Authorization: Basic =\r\n")) == "HTTP/1.1 401");
}

TEST_CASE("only what looks is answered", "[web_server]") {
  Site site;
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
    CHECK(status(get(site, "/", "Content-Length: 0\r\n", "localhost", method)) == "HTTP/1.1 405");
  CHECK(status(get(site, "/", "", "localhost", "HEAD")) == "HTTP/1.1 200");
}

TEST_CASE("garbage and what is too long end in an answer or a closed connection", "[web_server]") {
  ServerConfig config;
  config.request_time = std::chrono::milliseconds(300);
  Site site(config);
  const std::string wild[] = {
      std::string(100'000, 'A'),
      "GET / HTTP/1.1\r\n" + std::string(100'000, 'x'),
      "GET /" + std::string(50'000, 'x') + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(50'000, 'x') + "\r\n\r\n",
      std::string("\0\xff\x16\x03\x01\r\n\r\n", 9),
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nabc",
      "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc",
      "GET / HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-18446744073709551615,5-1\r\nConnection: close\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: localhost\r\n",  // and no more
      "\r\n\r\n\r\n",
  };
  for (const std::string& text : wild) {
    const Fd fd = connect_to(site.server->port());
    say(fd, text);
    const std::string answer = hear(fd);
    CHECK(answer.find("(nothing for a minute)") == answer.npos);
    CHECK(answer.find("freeride_manager_up") == answer.npos);
  }
  CHECK(status(get(site, "/metrics")) == "HTTP/1.1 200");
}

TEST_CASE("frames go to every viewer, up to as many as are allowed", "[web_server]") {
  Hub::Limits limits;
  limits.viewers = 2;
  Site site({}, limits);
  const std::string request = "GET /live HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip, br\r\n\r\n";
  Fd one = connect_to(site.server->port()), two = connect_to(site.server->port());
  say(one, request);
  say(two, request);
  CHECK(hear(one, "data: {}\n\n").find("text/event-stream") != std::string::npos);
  CHECK(hear(two, "data: {}\n\n").find("text/event-stream") != std::string::npos);
  CHECK(status(get(site, "/live")) == "HTTP/1.1 503");
  site.hub.publish(std::make_shared<const std::string>("{\"now\":1}"));
  CHECK(hear(one, "\n\n").find("data: {\"now\":1}") != std::string::npos);
  CHECK(hear(two, "\n\n").find("data: {\"now\":1}") != std::string::npos);
  one.reset();
  // It is seen with the next frame that one has gone.
  while (site.hub.size() == 2) {
    site.hub.publish(std::make_shared<const std::string>("{}"));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(status(get(site, "/metrics")) == "HTTP/1.1 200");
}

TEST_CASE("a viewer that does not read is dropped and holds nobody up", "[web_server]") {
  Hub::Limits limits;
  limits.frames = 20;
  limits.bytes = 1 << 20;
  ServerConfig config;
  config.write_time = std::chrono::milliseconds(300);
  Site site(config, limits);
  const Fd slow = connect_to(site.server->port(), 4096);
  say(slow, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n");
  hear(slow, "data: {}\n\n");
  const auto frame = std::make_shared<const std::string>(std::string(200'000, 'x'));
  while (site.hub.size() != 0) {
    site.hub.publish(frame);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK(status(get(site, "/metrics")) == "HTTP/1.1 200");
}

TEST_CASE("connections beyond the bound are turned away, and idle ones make room", "[web_server]") {
  ServerConfig config;
  config.connections = 2;
  config.request_time = config.idle_time = std::chrono::milliseconds(1500);
  Site site(config);
  const Fd one = connect_to(site.server->port()), two = connect_to(site.server->port());
  say(one, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n");  // unfinished
  say(two, "G");
  std::string answer;
  do {  // the other two may not have been accepted yet
    answer = get(site, "/metrics");
  } while (status(answer) == "HTTP/1.1 200");
  CHECK((status(answer) == "HTTP/1.1 503" || answer.empty()));
  while (status(get(site, "/metrics")) != "HTTP/1.1 200") std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST_CASE("a taken port is an error, and ends end every connection", "[web_server]") {
  Site site;
  const Fd viewer = connect_to(site.server->port());
  say(viewer, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n");
  hear(viewer, "data: {}\n\n");
  const Fd idle = connect_to(site.server->port());
  ServerConfig config;
  config.listen = *parse_listen("127.0.0.1:" + std::to_string(site.server->port()));
  const auto second = Server::start(config, {});
  REQUIRE_FALSE(second);
  CHECK(second.error().code == Code::kAlreadyExists);
  CHECK(second.error().text().find("--listen") != std::string::npos);
  site.hub.end();
  site.server.reset();
  CHECK(hear(viewer).find("minute") == std::string::npos);
  CHECK(hear(idle).find("minute") == std::string::npos);
}

TEST_CASE("a UNIX socket is its user's and group's, and one that was left behind is taken over", "[web_server]") {
  char folder[] = "/tmp/freeride-web-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/web.sock";
  std::ofstream(path) << "";
  ServerConfig config;
  config.listen = *parse_listen("unix:" + path);
  CHECK_FALSE(Server::start(config, {}));  // a file of somebody's stays
  std::filesystem::remove(path);
  {
    Site site(config);
    struct stat info {};
    REQUIRE(stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0660);
    CHECK(site.server->address() == "unix:" + path);
    const auto second = Server::start(config, {});
    REQUIRE_FALSE(second);
    CHECK(second.error().code == Code::kAlreadyExists);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("a UNIX socket whose listener takes nobody in is not waited for, nor taken over", "[web_server]") {
  char folder[] = "/tmp/freeride-web-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/web.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  const Fd listener(socket(AF_UNIX, SOCK_STREAM, 0));
  REQUIRE(bind(listener.get(), name, sizeof address) == 0);
  REQUIRE(listen(listener.get(), 0) == 0);
  std::vector<Fd> waiting;
  do waiting.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
  while (connect(waiting.back().get(), name, sizeof address) == 0);
  REQUIRE(errno == EAGAIN);
  ServerConfig config;
  config.listen = *parse_listen("unix:" + path);
  const auto second = Server::start(config, {});
  REQUIRE_FALSE(second);
  CHECK(second.error().code == Code::kAlreadyExists);
  CHECK(std::filesystem::exists(path));
  std::filesystem::remove_all(folder);
}

TEST_CASE("addresses to listen at", "[web_access]") {
  CHECK(parse_listen("7473")->host == "127.0.0.1");
  CHECK(parse_listen("7473")->loopback);
  CHECK(parse_listen("[::1]:80")->loopback);
  CHECK(parse_listen("127.9.9.9:80")->loopback);
  CHECK_FALSE(parse_listen("0.0.0.0:80")->loopback);
  CHECK_FALSE(parse_listen("[::]:80")->loopback);
  CHECK_FALSE(parse_listen("10.0.0.1:80")->loopback);
  CHECK(parse_listen("unix:/run/x.sock")->local_socket);
  for (const std::string bad : {"", ":", "localhost:80", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                                "unix:", "1.2.3:80", "[::1", "127.0.0.1:80 "})
    CHECK_FALSE(parse_listen(bad));
  CHECK_FALSE(parse_listen("unix:" + std::string(200, 'x')));
}

TEST_CASE("a token's file is private and long enough", "[web_access]") {
  char folder[] = "/tmp/freeride-web-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/token";
  const auto with = [&](const std::string& text, mode_t mode) {
    std::ofstream(path) << text;
    REQUIRE(chmod(path.c_str(), mode) == 0);
    return read_token(path);
  };
  CHECK(read_token(path).error().code == Code::kNotFound);
  CHECK(*with("0123456789abcdef\nmore\n", 0600) == "0123456789abcdef");
  CHECK(with("0123456789abcdef\n", 0640).error().code == Code::kPermission);
  CHECK(with("short\n", 0600).error().code == Code::kInvalidArgument);
  CHECK(with("0123456789 abcdef\n", 0600).error().code == Code::kInvalidArgument);
  CHECK(with(std::string(1000, 'x'), 0600).error().code == Code::kInvalidArgument);
  std::filesystem::remove_all(folder);
}
