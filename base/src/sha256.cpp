#include "freeride/base/sha256.hpp"

#include <openssl/evp.h>
#include <spdlog/fmt/fmt.h>

#include <cerrno>
#include <fstream>
#include <memory>

namespace freeride {
namespace {

class Hasher {
 public:
  Hasher() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void add(const char* data, size_t size) { EVP_DigestUpdate(context_.get(), data, size); }
  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &size);
    return fmt::format("{:02x}", fmt::join(digest, digest + size, ""));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  Hasher hasher;
  hasher.add(bytes.data(), bytes.size());
  return hasher.hex();
}

Result<std::string> sha256_hex_of_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return errno_error("cannot read " + file.string(), errno);
  Hasher hasher;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) hasher.add(buffer, static_cast<size_t>(in.gcount()));
  if (in.bad()) return errno_error("cannot read " + file.string(), errno);
  return hasher.hex();
}

}  // namespace freeride
