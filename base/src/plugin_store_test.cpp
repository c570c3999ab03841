#include "freeride/base/plugin_store.hpp"

#include <elf.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>

#include "freeride/base/sha256.hpp"
#include "freeride/base/testing/temp_folder.hpp"

using namespace freeride;
using freeride::testing::slurp;
using freeride::testing::TempFolder;

namespace fs = std::filesystem;

namespace {

const std::string kScript = "import freeride_plugin\n";

// The least that check_plugin_file() takes for a shared object with the entry symbol.
std::string tiny_plugin() {
  struct {
    Elf64_Ehdr header{};
    Elf64_Shdr sections[2]{};
    Elf64_Sym symbol{};
    char names[24] = "\0freeride_plugin_v1";
  } file;
  std::memcpy(file.header.e_ident, ELFMAG, SELFMAG);
  file.header.e_ident[EI_CLASS] = ELFCLASS64;
  file.header.e_type = ET_DYN;
  Elf64_Ehdr self{};
  std::ifstream("/proc/self/exe", std::ios::binary).read(reinterpret_cast<char*>(&self), sizeof(self));
  file.header.e_machine = self.e_machine;
  file.header.e_shoff = offsetof(decltype(file), sections);
  file.header.e_shentsize = sizeof(Elf64_Shdr);
  file.header.e_shnum = 2;
  file.sections[0].sh_type = SHT_DYNSYM;
  file.sections[0].sh_link = 1;
  file.sections[0].sh_offset = offsetof(decltype(file), symbol);
  file.sections[0].sh_size = sizeof(file.symbol);
  file.sections[1].sh_offset = offsetof(decltype(file), names);
  file.symbol.st_name = 1;
  file.symbol.st_shndx = 1;
  return {reinterpret_cast<const char*>(&file), sizeof(file)};
}

void damage(const fs::path& file) {
  fs::permissions(file, fs::perms::owner_all);
  std::ofstream(file, std::ios::app) << "more";
}

// Files beyond so many bytes cannot be written, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("the store keeps plugins by their hash, whole and unchanged", "[store]") {
  const TempFolder temp;
  PluginStore store(temp.path() / "a" / "store");
  for (const auto& [bytes, name] : {std::pair{tiny_plugin(), "side.so"}, std::pair{kScript, "side.py"}}) {
    const auto sha256 = store.put(bytes, name);
    REQUIRE(sha256.ok());
    CHECK(*sha256 == sha256_hex(bytes));
    CHECK(store.has(*sha256));
    const auto file = store.get(*sha256);
    REQUIRE(file.ok());
    CHECK(file->extension() == fs::path(name).extension());
    CHECK(slurp(*file) == bytes);
    CHECK(*store.read(*sha256) == bytes);
    CHECK((fs::status(*file).permissions() & fs::perms::all) == static_cast<fs::perms>(0444));
    const auto written = fs::last_write_time(*file);
    CHECK(*store.put(bytes) == *sha256);  // as it comes by its hash
    CHECK(fs::last_write_time(*file) == written);
  }
  CHECK(std::distance(fs::directory_iterator(store.folder()), fs::directory_iterator()) == 2);
  const auto contents = store.list();
  CHECK(contents.size() == 2);
  for (const std::string& sha256 : contents) {
    store.remove(sha256);
    CHECK_FALSE(store.has(sha256));
  }
  CHECK(store.list().empty());
}

TEST_CASE("a store that is made under a narrow umask can be passed by a side task's own uid, and not be listed",
          "[store]") {
  const TempFolder temp;
  PluginStore store(temp.path() / "store");
  const mode_t before = umask(0077);
  const auto sha256 = store.put(tiny_plugin(), "side.so");
  umask(before);
  REQUIRE(sha256.ok());
  CHECK((fs::status(store.folder()).permissions() & fs::perms::all) == static_cast<fs::perms>(0711));
}

TEST_CASE("the store keeps nothing that is no plugin", "[store]") {
  const TempFolder temp;
  PluginStore store(temp.path() / "store");
  CHECK(store.put("garbage", "g.so").error().message == "g.so is not an ELF file");
  CHECK(store.put("garbage").error().code == Code::kInvalidArgument);
  CHECK_FALSE(fs::exists(store.folder()));
}

TEST_CASE("a damaged file in the store is handed out by neither get nor read, and the next put replaces it",
          "[store]") {
  const TempFolder temp;
  PluginStore store(temp.path());
  const std::string bytes = tiny_plugin(), sha256 = *store.put(bytes);
  const fs::path file = *store.get(sha256);
  SECTION("get") {
    damage(file);
    const auto got = store.get(sha256);
    REQUIRE_FALSE(got.ok());
    CHECK(got.error().code == Code::kNotFound);
    CHECK(got.error().message.find("was damaged and has been removed") != std::string::npos);
    CHECK_FALSE(fs::exists(file));
  }
  SECTION("read") {
    damage(file);
    CHECK(store.read(sha256).error().code == Code::kNotFound);
    CHECK_FALSE(store.has(sha256));
  }
  SECTION("put alone") {
    damage(file);
  }
  REQUIRE(store.put(bytes).ok());
  CHECK(slurp(*store.get(sha256)) == bytes);
}

TEST_CASE("a content is read in pieces; once its file was touched it is hashed again before the first", "[store]") {
  const TempFolder temp;
  PluginStore store(temp.path() / "store");
  const auto sha256 = store.put(tiny_plugin(), "tiny.so");
  REQUIRE(sha256.ok());
  const fs::path file = store.folder() / (*sha256 + ".so");
  CHECK(*store.read_piece(*sha256, 0, 10) == tiny_plugin().substr(0, 10));
  CHECK(*store.read_piece(*sha256, 10, UINT64_MAX) == tiny_plugin().substr(10));
  CHECK(store.read_piece(*sha256, 1 << 20, 10)->empty());
  damage(file);
  CHECK(store.read_piece(*sha256, 0, 10).error().code == Code::kNotFound);
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("workers of the same pid, in containers, write the same plugin into one store", "[store]") {
  const TempFolder temp;
  PluginStore store(temp.path()), other(temp.path());
  const std::string sha256 = sha256_hex(kScript);
  // What the other one has begun to write, had it chosen its name by pid and count.
  std::ofstream(temp.path() / ("." + sha256 + "." + std::to_string(getpid()) + ".1")) << "half";
  REQUIRE(store.put(kScript).ok());
  REQUIRE(other.put(kScript).ok());
  CHECK(slurp(*store.get(sha256)) == kScript);
  CHECK(store.list() == std::vector<std::string>{sha256});
}

TEST_CASE("the store refuses names that are no hashes", "[store]") {
  const TempFolder temp;
  PluginStore store(temp.path() / "store");
  const std::string sha256 = *store.put(kScript);
  for (const std::string& bad : {std::string("../../etc/passwd"), "../store/" + sha256, std::string(),
                                 std::string(64, 'G'), std::string(64, 'A'), std::string(63, 'a')}) {
    CHECK_FALSE(is_sha256(bad));
    CHECK(store.get(bad).error().code == Code::kInvalidArgument);
    CHECK(store.read(bad).error().code == Code::kInvalidArgument);
    CHECK_FALSE(store.has(bad));
  }
  CHECK(store.get(std::string(64, 'a')).error().code == Code::kNotFound);
  CHECK(store.read(std::string(64, 'a')).error().code == Code::kNotFound);
}

TEST_CASE("a store that cannot be written says so, and leaves nothing half written", "[store]") {
  const TempFolder temp;
  std::ofstream(temp.path() / "file") << "";
  PluginStore nowhere(temp.path() / "file" / "store");
  CHECK(nowhere.put(kScript).error().message.find("plugin store") != std::string::npos);
  PluginStore store(temp.path() / "store");
  {
    const FullDisk full(10);
    CHECK_FALSE(store.put(kScript).ok());
  }
  CHECK(fs::is_empty(store.folder()));
  CHECK(store.put(kScript).ok());
}
