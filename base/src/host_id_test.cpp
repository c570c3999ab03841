#include "freeride/base/host_id.hpp"

#include <catch2/catch.hpp>

namespace freeride {

TEST_CASE("hosts of one name are told apart, and one host is always the same") {
  const std::string one = "0123456789abcdef0123456789abcdef", other = "f123456789abcdef0123456789abcdef";
  const std::string id = host_id_of("node", one);
  CHECK(id == host_id_of("node", one));
  CHECK(id != host_id_of("node", other));
  CHECK(id != host_id_of("edon", one));
  CHECK(id.rfind("node-", 0) == 0);
  CHECK(id.size() == 5 + 8);
  CHECK(id.find(one.substr(0, 8)) == std::string::npos);
  CHECK(host_id_of(std::string(200, 'n'), one).size() == kMaxHostId);
  // HMAC-SHA256 of the constant under this key, by another program: a change of it would rename every worker.
  CHECK(id == "node-5de20f99");
  CHECK(host_id() == host_id());
}

TEST_CASE("what may be given as a host's id") {
  CHECK(is_host_id("rack3-n1.example"));
  CHECK(is_host_id(host_id_of("node", "x")));
  CHECK_FALSE(is_host_id(""));
  CHECK_FALSE(is_host_id("a:b"));
  CHECK_FALSE(is_host_id("a/b"));
  CHECK_FALSE(is_host_id(std::string(kMaxHostId + 1, 'a')));
}

}  // namespace freeride
