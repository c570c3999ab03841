// SHA-256 of bytes and files (OpenSSL's), as 64 lower-case hex digits: a plugin's identity everywhere.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "freeride/base/result.hpp"

namespace freeride {

std::string sha256_hex(std::string_view bytes);
/// Blocks on the disk. Errors: kNotFound, kPermission, kInternal (read failed).
Result<std::string> sha256_hex_of_file(const std::filesystem::path& file);

}  // namespace freeride
