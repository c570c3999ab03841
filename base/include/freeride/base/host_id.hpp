// What a host is called where there are several.
#pragma once

#include <string>
#include <string_view>

namespace freeride {

constexpr size_t kMaxHostId = 56;  ///< bytes

/// "<hostname>-<8 hexadecimal digits>", the digits derived from `secret`, from which nobody can tell it: as
/// sd_id128_get_machine_app_specific() does, by HMAC-SHA256 of a constant of ours. Long hostnames are cut.
std::string host_id_of(std::string_view hostname, std::string_view secret);

/// This host's, made of its name and /etc/machine-id. Some containers have no such file: then it is made of the
/// kernel's boot id, and changes with each boot. So two hosts of one name are told apart, and two of one machine id (a
/// disk that was copied) with different names, too.
std::string host_id();

/// Whether `text` may be given as a host's id: as a task's name, and short.
bool is_host_id(std::string_view text);

}  // namespace freeride
