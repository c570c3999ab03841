#include "freeride/base/host_id.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <spdlog/fmt/fmt.h>
#include <sys/utsname.h>

#include <fstream>

#include "freeride/base/names.hpp"

namespace freeride {
namespace {

// Random, once and for all: another program that derives an id from the same secret gets another one.
constexpr std::string_view kOurs = "\x5d\x1c\xe0\x77\x9a\x4b\x43\x0f\xa8\x36\xd2\x91\x6e\xbf\x28\xc4";
constexpr size_t kDigestBytes = 4;

std::string first_word(const char* file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

}  // namespace

std::string host_id_of(std::string_view hostname, std::string_view secret) {
  unsigned char digest[EVP_MAX_MD_SIZE] = {};
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(kOurs.data()), kOurs.size(), digest, &size);
  std::string id(hostname.substr(0, kMaxHostId - 2 * kDigestBytes - 1));
  return fmt::format("{}-{:02x}", id, fmt::join(digest, digest + kDigestBytes, ""));
}

std::string host_id() {
  utsname name{};
  uname(&name);
  std::string secret = first_word("/etc/machine-id");
  if (secret.size() != 32) secret = first_word("/proc/sys/kernel/random/boot_id");  // "uninitialized", or nothing
  return host_id_of(name.nodename, secret);
}

bool is_host_id(std::string_view text) {
  return is_task_name(text) && text.size() <= kMaxHostId;
}

}  // namespace freeride
