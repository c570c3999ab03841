#include "access_rules.hpp"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>

namespace freeride::web {
namespace {

constexpr size_t kMinTokenBytes = 16, kMaxTokenBytes = 512;
constexpr std::string_view kUnix = "unix:";

std::optional<int> port_of(std::string_view text) {
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port < 0 || port > 65535) return std::nullopt;
  return port;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

// "name:7473", "name" or "[::1]:7473" without port and brackets; nothing where the rest is no port.
std::optional<std::string> host_of(std::string_view header) {
  if (!header.empty() && header.front() == '[') {
    const size_t close = header.find(']');
    if (close == header.npos) return std::nullopt;
    const std::string_view rest = header.substr(close + 1);
    if (!rest.empty() && (rest.front() != ':' || !port_of(rest.substr(1)))) return std::nullopt;
    return lower(header.substr(1, close - 1));
  }
  const size_t colon = header.find(':');
  if (colon != header.npos && !port_of(header.substr(colon + 1))) return std::nullopt;
  return lower(header.substr(0, colon));
}

bool same(std::string_view given, std::string_view token) {
  return given.size() == token.size() && CRYPTO_memcmp(given.data(), token.data(), token.size()) == 0;
}

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0 || text.size() > 2048) return std::nullopt;
  std::string out(text.size() / 4 * 3, '\0');
  const int length =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()), reinterpret_cast<const unsigned char*>(text.data()),
                      static_cast<int>(text.size()));
  if (length < 0) return std::nullopt;
  out.resize(static_cast<size_t>(length) - static_cast<size_t>(std::count(text.end() - 2, text.end(), '=')));
  return out;
}

}  // namespace

Result<Listen> parse_listen(const std::string& text) {
  const auto wrong = [&](const std::string& hint) {
    return Error{Code::kInvalidArgument, "'" + text + "' is no address to listen at", hint};
  };
  Listen listen;
  if (text.compare(0, kUnix.size(), kUnix) == 0) {
    listen.host = text.substr(kUnix.size());
    listen.local_socket = listen.loopback = true;
    if (listen.host.empty() || listen.host.size() >= sizeof(sockaddr_un::sun_path))
      return wrong("a socket's path has 1 to 107 bytes");
    return listen;
  }
  const size_t colon = text.rfind(':');
  const auto port = port_of(colon == text.npos ? text : text.substr(colon + 1));
  if (!port) return wrong("write ADDRESS:PORT, e.g. 127.0.0.1:7473, or unix:PATH");
  listen.port = *port;
  listen.host = colon == text.npos ? "127.0.0.1" : text.substr(0, colon);
  if (listen.host.size() > 2 && listen.host.front() == '[' && listen.host.back() == ']')
    listen.host = listen.host.substr(1, listen.host.size() - 2);
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, listen.host.c_str(), &four) == 1) {
    listen.loopback = (ntohl(four.s_addr) >> 24) == 127;
  } else if (inet_pton(AF_INET6, listen.host.c_str(), &six) == 1) {
    listen.loopback = IN6_IS_ADDR_LOOPBACK(&six);
  } else {
    return wrong("write an address instead of a name, e.g. 127.0.0.1:7473");
  }
  return listen;
}

Result<std::string> read_token(const std::string& path) {
  std::ifstream file(path);
  struct stat info {};
  if (!file || ::stat(path.c_str(), &info) != 0)
    return Error{Code::kNotFound, "the token file " + path + " cannot be read",
                 "make it: (umask 077; openssl rand -hex 24 > " + path + ")"};
  if ((info.st_mode & 077) != 0)
    return Error{Code::kPermission, "others can read the token file " + path, "chmod 600 " + path};
  std::string token(kMaxTokenBytes + 1, '\0');
  file.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(static_cast<size_t>(file.gcount()));
  token = token.substr(0, token.find_first_of("\r\n"));
  const bool printable = std::all_of(token.begin(), token.end(), [](unsigned char c) { return c > ' ' && c < 127; });
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes || !printable) {
    return Error{Code::kInvalidArgument,
                 "the token in " + path + " is not 16 to 512 printable characters without spaces",
                 "make one: openssl rand -hex 24"};
  }
  return token;
}

bool is_own_host(std::string_view header, const Listen& listen, const std::vector<std::string>& names) {
  const auto host = host_of(header);
  if (!host || host->empty()) return false;
  if (*host == "localhost" || *host == "127.0.0.1" || *host == "::1") return true;
  if (!listen.local_socket && *host == lower(listen.host)) return true;
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return *host == lower(name); });
}

bool carries_token(std::string_view header, std::string_view token) {
  constexpr std::string_view kBearer = "Bearer ", kBasic = "Basic ";
  if (header.substr(0, kBearer.size()) == kBearer) return same(header.substr(kBearer.size()), token);
  if (header.substr(0, kBasic.size()) != kBasic) return false;
  const auto both = decode_base64(header.substr(kBasic.size()));
  if (!both) return false;
  const size_t colon = both->find(':');
  return colon != both->npos && same(std::string_view(*both).substr(colon + 1), token);
}

}  // namespace freeride::web
