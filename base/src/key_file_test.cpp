// Key files: what one must say, whose it may be, and that none is replaced.
#include "freeride/base/key_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "freeride/base/testing/temp_folder.hpp"

using namespace freeride;
using testing::TempFolder;

namespace {
const std::string kPublic = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
const std::string kSecret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";

std::string said(const Result<KeyFile>& read) {
  return read.ok() ? "" : read.error().message;
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}
}  // namespace

TEST_CASE("a key file says again what it was made of, and unknown fields are passed over") {
  const KeyFile key{"alice", "user", "alice smith", "", kPublic, kSecret, kPublic};
  auto read = parse_key_file("# made by\n" + key_file_text(key) + "colour blue\n", "f");
  REQUIRE(read.ok());
  CHECK(read->name == "alice");
  CHECK(read->account == "alice smith");
  CHECK(read->secret_key == kSecret);
  CHECK(key_file_text(*read) == key_file_text(key));
}

TEST_CASE("what is no key file is told by its line") {
  const std::string good = "name a\npublic " + kPublic + "\n";
  REQUIRE(parse_key_file(good, "f").ok());
  CHECK(contains(said(parse_key_file("", "f")), "no 'name'"));
  CHECK(contains(said(parse_key_file("name a\n", "f")), "no 'public'"));
  CHECK(contains(said(parse_key_file("name a\npublic short\n", "f")), "line 2"));
  CHECK(contains(said(parse_key_file("name a\npublic " + kPublic.substr(1) + "\"\n", "f")), "line 2"));
  CHECK(contains(said(parse_key_file(good + "role user\nrole operator\n", "f")), "line 4"));
  CHECK(contains(said(parse_key_file("name ../a\npublic " + kPublic + "\n", "f")), "no 'name'"));
  CHECK(contains(said(parse_key_file(std::string("\x7f"
                                                 "ELF\0\0",
                                                 6),
                                     "f")),
                 "line 1"));
  CHECK(contains(said(parse_key_file(good + "account " + std::string(200, 'x') + "\n", "f")), "'account'"));
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {  // bytes that were changed in a good one: an answer, whatever it is
    std::string text = good + "role user\naccount a\n";
    for (int n = 0; n < 3; ++n) text[random() % text.size()] = static_cast<char>(random());
    const auto read = parse_key_file(text, "f");
    if (read.ok()) CHECK(is_z85_key(read->public_key));
  }
}

TEST_CASE("a secret that others can read, or that is somebody else's, is not used") {
  TempFolder folder;
  const auto file = folder.path() / "a.key";
  const KeyFile key{"a", "user", "a", "", kPublic, kSecret, kPublic};
  REQUIRE(make_key_file(file, key, 0600, geteuid()).ok());
  REQUIRE(read_secret_key(file).ok());
  struct stat info {};
  REQUIRE(stat(file.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(make_key_file(file, key, 0600, geteuid()).error().code == Code::kAlreadyExists);

  REQUIRE(chmod(file.c_str(), 0640) == 0);
  CHECK(contains(said(read_secret_key(file)), "other users may read it"));
  CHECK(read_authorized_key(file).ok());
  REQUIRE(chmod(file.c_str(), 0620) == 0);
  CHECK(contains(said(read_authorized_key(file)), "other users may write it"));
  REQUIRE(chmod(file.c_str(), 0600) == 0);

  std::filesystem::create_symlink(file, folder.path() / "link.key");
  CHECK_FALSE(read_secret_key(folder.path() / "link.key").ok());
  CHECK(read_secret_key(folder.path() / "none.key").error().code == Code::kNotFound);
  CHECK_FALSE(read_secret_key(folder.path()).ok());

  KeyFile open = key;
  open.secret_key.clear();
  REQUIRE(make_key_file(folder.path() / "public.key", open, 0600, geteuid()).ok());
  CHECK(contains(said(read_secret_key(folder.path() / "public.key")), "no 'secret'"));
  if (geteuid() != 0) return;
  REQUIRE(chown(file.c_str(), 65534, 65534) == 0);
  CHECK(contains(said(read_secret_key(file)), "belongs to"));
}
