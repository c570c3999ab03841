// Which requests are answered at all.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::web {

/// Where to listen.
struct Listen {
  bool local_socket = false;
  std::string host;       ///< an address, or the socket's path
  int port = 0;           ///< 0: one that is free
  bool loopback = false;  ///< whether nobody outside of this host can connect
};
/// "HOST:PORT", "[::1]:PORT", "PORT" or "unix:PATH". HOST is an address: a name could come to mean another one.
/// Errors: kInvalidArgument.
Result<Listen> parse_listen(const std::string& text);

/// The token of a file: its first line, at least 16 characters. Errors: kNotFound, kPermission (others than the owner
/// can read it), kInvalidArgument.
Result<std::string> read_token(const std::string& path);

/// Whether a request's Host header names this server: loopback's names, the address that it listens at, or one of
/// `names`. Anything else is a name that somebody has made mean this address (DNS rebinding).
bool is_own_host(std::string_view header, const Listen& listen, const std::vector<std::string>& names);

/// Whether an Authorization header carries the token: "Bearer TOKEN", or Basic with it as the password, which a browser
/// asks for. Takes as long for a wrong token as for the right one.
bool carries_token(std::string_view header, std::string_view token);

}  // namespace freeride::web
