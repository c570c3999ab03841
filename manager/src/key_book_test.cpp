// The folder of authorised keys: what is believed of it, and that a change counts from the next question on.
#include "key_book.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>

#include "freeride/base/access.hpp"
#include "freeride/base/testing/temp_folder.hpp"
#include "freeride/bus/network.hpp"
#include "identity.hpp"

using namespace freeride;
using namespace freeride::manager;
using policy::Role;

namespace {

struct Folder {
  Folder() {
    std::filesystem::create_directories(authorized);
    for (const auto& one : {keys, authorized}) REQUIRE(chmod(one.c_str(), 0700) == 0);
    add("manager", "manager", keys / "manager.key", true);
  }
  // The public key of a new pair.
  std::string add(const std::string& name, const std::string& role, std::filesystem::path file = {},
                  bool with_secret = false, const std::string& host = "") const {
    const auto pair = bus::make_key_pair().value();
    KeyFile key{name, role, "account of " + name, host, pair.public_key, with_secret ? pair.secret_key : "", ""};
    if (file.empty()) file = authorized / (name + ".key");
    REQUIRE(make_key_file(file, key, 0600, geteuid()).ok());
    return pair.public_key;
  }
  std::unique_ptr<KeyBook> open() const {
    auto book = KeyBook::open(keys);
    REQUIRE(book.ok());
    return std::move(*book);
  }
  testing::TempFolder folder;
  const std::filesystem::path keys = folder.path() / "keys", authorized = keys / "authorized";
};

}  // namespace

TEST_CASE("keys: one that is added or removed is so at the next question, and somebody is told") {
  const Folder folder;
  const std::string first = folder.add("first", "operator");
  const auto book = folder.open();
  std::atomic<int> told{0};
  book->on_change([&] { ++told; });
  REQUIRE(book->find(first).has_value());
  CHECK(book->find(first)->role == Role::kOperator);
  CHECK(book->find(first)->account == "account of first");
  for (int i = 0; i < 200; ++i) {  // no moment in which the former answer is given
    const std::string key = folder.add("second", "user");
    REQUIRE(book->find(key).has_value());
    REQUIRE(std::filesystem::remove(folder.authorized / "second.key"));
    REQUIRE_FALSE(book->find(key).has_value());
  }
  CHECK(told > 0);
  CHECK(book->find(first).has_value());
  book->on_change(nullptr);
}

TEST_CASE("keys: a file that is not to be believed counts as none") {
  const Folder folder;
  const auto book = folder.open();
  const auto file = [&](const char* name) { return folder.authorized / name; };
  CHECK_FALSE(book->find("").has_value());
  CHECK_FALSE(book->find(folder.add("a", "root")).has_value());
  CHECK_FALSE(book->find(folder.add("b", "submitter")).has_value());
  CHECK_FALSE(book->find(folder.add("c", "user", file("other.key"))).has_value());
  CHECK_FALSE(book->find(folder.add("d", "user", file("d.txt"))).has_value());
  CHECK_FALSE(book->find(folder.add("e", "user", file(".e.key"))).has_value());
  CHECK_FALSE(book->find(folder.add("f", "node")).has_value());  // of no host
  CHECK(book->find(folder.add("g", "node", {}, false, "gpu7")).has_value());

  const std::string open = folder.add("open", "user");
  REQUIRE(book->find(open).has_value());
  REQUIRE(chmod(file("open.key").c_str(), 0622) == 0);
  CHECK_FALSE(book->find(open).has_value());
  REQUIRE(chmod(file("open.key").c_str(), 0600) == 0);
  CHECK(book->find(open).has_value());

  const std::string twice = folder.add("twice", "monitor");
  REQUIRE(book->find(twice).has_value());
  KeyFile again{"again", "operator", "root", "", twice, "", ""};
  REQUIRE(make_key_file(file("again.key"), again, 0600, geteuid()).ok());
  CHECK_FALSE(book->find(twice).has_value());
  std::ofstream(file("garbage.key")) << std::string(100'000, '\xff');
  CHECK(book->find(open).has_value());
}

TEST_CASE("keys: a folder that others may write, that goes, or that another takes the place of") {
  const Folder folder;
  const std::string key = folder.add("a", "user");
  const auto book = folder.open();
  REQUIRE(book->find(key).has_value());
  REQUIRE(chmod(folder.authorized.c_str(), 0777) == 0);
  CHECK_FALSE(book->find(key).has_value());
  CHECK_FALSE(KeyBook::open(folder.keys).ok());
  REQUIRE(chmod(folder.authorized.c_str(), 0700) == 0);
  CHECK(book->find(key).has_value());

  std::filesystem::rename(folder.authorized, folder.keys / "old");
  CHECK_FALSE(book->find(key).has_value());
  std::filesystem::create_directory(folder.authorized);
  REQUIRE(chmod(folder.authorized.c_str(), 0700) == 0);
  const std::string fresh = folder.add("b", "user");
  CHECK(book->find(fresh).has_value());
  CHECK_FALSE(book->find(key).has_value());
  REQUIRE(std::filesystem::remove(folder.authorized / "b.key"));
  CHECK_FALSE(book->find(fresh).has_value());
}

TEST_CASE("keys: while they cannot be read there are none, and afterwards they are there by themselves") {
  const Folder folder;
  const std::string key = folder.add("a", "user");
  const auto book = folder.open();
  REQUIRE(book->find(key).has_value());
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  SECTION("of the folder") {
    REQUIRE(chmod(folder.authorized.c_str(), 0711) == 0);  // a change, so that it is read
    const rlimit none{0, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  SECTION("of a file") {
    REQUIRE(chmod((folder.authorized / "a.key").c_str(), 0640) == 0);
    // The folder's own descriptor is the last.
    const Fd next(dup(STDIN_FILENO));
    const rlimit one{static_cast<rlim_t>(next.get()) + 1, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &one) == 0);
  }
  const bool there = book->find(key).has_value();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_FALSE(there);
  while (!book->find(key)) usleep(10'000);
}

// A Secret's volume: open to all at its top, where every name is a link; what a link ..data leads to is the keeper's
// alone, and a change is a new folder that the link is given.
TEST_CASE("keys: a folder of a Kubernetes Secret is followed from one version to the next") {
  const Folder folder;
  const auto volume = folder.folder.path() / "secret";
  std::filesystem::create_directory(volume);
  REQUIRE(chmod(volume.c_str(), 01777) == 0);
  const auto publish = [&](const std::string& version, const std::string& name) {
    const auto fresh = volume / (".." + version);
    std::filesystem::create_directory(fresh);
    REQUIRE(chmod(fresh.c_str(), 0755) == 0);
    std::string key = folder.add(name, "user", fresh / (name + ".key"));
    std::filesystem::create_symlink(".." + version, volume / "..data_tmp");
    std::filesystem::rename(volume / "..data_tmp", volume / "..data");
    std::filesystem::create_symlink("..data/" + name + ".key", volume / (name + ".key"));
    return key;
  };
  const std::string first = publish("1", "a");
  CHECK_FALSE(KeyBook::open(folder.keys, 10, volume).ok());  // anybody could add a key there
  auto book = KeyBook::open(folder.keys, 10, volume / "..data");
  REQUIRE(book.ok());
  CHECK((*book)->find(first).has_value());

  const std::string second = publish("2", "b");
  CHECK((*book)->find(second).has_value());
  CHECK_FALSE((*book)->find(first).has_value());

  std::atomic<int> told{0};
  (*book)->on_change([&] { ++told; });
  publish("3", "c");
  std::filesystem::remove_all(volume / "..2");  // as the keeper does afterwards; nobody asks
  while (told == 0) usleep(1000);
  CHECK_FALSE((*book)->find(second).has_value());
  (*book)->on_change(nullptr);
}

TEST_CASE("keys: without a manager's key there are none, and it may be nobody's to read") {
  const testing::TempFolder empty;
  CHECK(KeyBook::open(empty.path() / "keys").error().code == Code::kNotFound);
  const Folder folder;
  REQUIRE(chmod((folder.keys / "manager.key").c_str(), 0644) == 0);
  CHECK(KeyBook::open(folder.keys).error().code == Code::kPermission);
}

TEST_CASE("identity: the kernel's word, a key's, and a node's for its host's users") {
  const Folder folder;
  const std::string user = folder.add("alice", "user"), node = folder.add("gpu7", "node", {}, false, "gpu7");
  const auto book = folder.open();
  Identities identities(book.get());
  bus::Message plain, for_root, for_other;
  for_root.uid = 0;
  for_other.uid = 4242;
  bus::Sender local;
  local.process = {geteuid(), 7};
  CHECK(identities.of(local, plain).role == Role::kOperator);
  CHECK(identities.of(local, plain).account == user_name(geteuid()));
  local.process.uid = 4242;
  CHECK(identities.of(local, plain).role == Role::kUser);
  CHECK(identities.of(local, for_root).role == Role::kUser);
  CHECK(identities.of(local, for_root).uid == 4242);

  const auto by = [&](const std::string& key, const bus::Message& message) {
    bus::Sender sender;
    sender.remote = true;
    sender.key = key;
    sender.address = "10.0.0.7";
    return identities.of(sender, message);
  };
  CHECK(by(user, plain).role == Role::kUser);
  CHECK(by(user, for_root).account == "account of alice");  // no node: it speaks for itself
  CHECK(by(node, plain).role == Role::kNode);
  CHECK(by(node, for_root).role == Role::kUser);
  CHECK(by(node, for_root).account == user_name(0) + "@gpu7");  // not this host's root
  CHECK(by(node, for_other).account == "uid 4242@gpu7");
  CHECK(by(std::string(40, 'x'), for_root).role == Role::kNobody);
  CHECK(by("", for_root).role == Role::kNobody);
  CHECK_FALSE(by(node, for_root).local);

  Identities keyless(nullptr);
  bus::Sender anybody;
  anybody.remote = true;
  CHECK(keyless.of(anybody, for_root).role == Role::kMonitor);
}

TEST_CASE("identity: a message costs one look at the keys, and is nobody's from a key that is revoked by then") {
  const Folder folder;
  const std::string key = folder.add("gpu7", "node", {}, false, "gpu7");
  const auto book = folder.open();
  Identities identities(book.get());
  bus::Sender sender;
  sender.remote = true;
  sender.key = key;
  const uint64_t before = book->looks();
  for (int n = 0; n < 10; ++n) {
    CHECK(book->admits(key));
    CHECK(identities.of(sender, {}).role == Role::kNode);
  }
  CHECK(book->looks() == before + 10);
  REQUIRE(std::filesystem::remove(folder.authorized / "gpu7.key"));
  CHECK_FALSE(book->admits(key));
  CHECK(identities.of(sender, {}).role == Role::kNobody);
}
