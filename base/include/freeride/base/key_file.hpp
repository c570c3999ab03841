// Key files: who somebody is on the network. A text of one "field value" a line; what begins with # is a comment.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "freeride/base/result.hpp"

namespace freeride {

constexpr size_t kZ85KeyBytes = 40;  ///< a CURVE key as text (ZeroMQ's Z85)

/// What a key file says. A client's has all but `host`; the manager's list of authorised keys has no secrets.
struct KeyFile {
  std::string name;         ///< of the key; is_task_name()
  std::string role;         ///< monitor, user, operator or node
  std::string account;      ///< whose tasks are this key's own; is_plain()
  std::string host;         ///< of a node: the host for whose users it speaks
  std::string public_key;   ///< Z85
  std::string secret_key;   ///< Z85; whoever has it is this key
  std::string manager_key;  ///< Z85: the public key of the manager that it is for
};

/// Whether `text` is a key: 40 characters of Z85.
bool is_z85_key(std::string_view text);

/// Reads what a key file holds; `where` is its name for messages. Every field is checked; an unknown one is passed
/// over, so that a later version can add some. Errors: kInvalidArgument (with the line).
Result<KeyFile> parse_key_file(std::string_view text, const std::string& where);
/// The reverse: fields that are empty are left out.
std::string key_file_text(const KeyFile& key);

/// Reads a file with a secret: it must be this user's or root's, and nobody else may read it. Blocks on the disk.
/// Errors: kPermission (whose it is or how to close it), kInvalidArgument (no key file, no secret in it), kNotFound.
Result<KeyFile> read_secret_key(const std::filesystem::path& file);
/// Reads a file of a list of authorised keys: it must be this user's or root's, and nobody else may write it. Errors:
/// as above.
Result<KeyFile> read_authorized_key(const std::filesystem::path& file);

/// Makes `file` with `mode` and gives it to `owner` where that is somebody else; it is there whole, or not at all.
/// Never replaces a file. Errors: kAlreadyExists, kPermission, kExhausted.
Status make_key_file(const std::filesystem::path& file, const KeyFile& key, mode_t mode, uid_t owner);

}  // namespace freeride
