#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "freeride/base/about.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/copy_tree.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/priority.hpp"
#include "freeride/base/python_env.hpp"
#include "freeride/base/result.hpp"
#include "freeride/base/sha256.hpp"

using namespace freeride;

namespace {
std::filesystem::path temp_file(const std::string& text) {
  auto path = std::filesystem::temp_directory_path() / ("freeride_base_test_" + std::to_string(rand()) + ".toml");
  std::ofstream(path) << text;
  return path;
}

struct Options {
  CLI::App app;
  int grace_ms = 1;
  std::string device = "none";
  Options() {
    app.add_option("--grace-ms", grace_ms);
    app.add_option("--device", device);
  }
};
}  // namespace

TEST_CASE("codes survive the wire by name") {
  for (auto code : {Code::kInvalidArgument, Code::kNotFound, Code::kTimeout, Code::kInternal}) {
    CHECK(code_from_string(to_string(code)) == code);
  }
  CHECK(code_from_string("from_the_future") == Code::kInternal);
}

TEST_CASE("sha256 matches the published test vector") {
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  auto file = temp_file("abc");
  CHECK(*sha256_hex_of_file(file) == sha256_hex("abc"));
  std::filesystem::remove(file);
  CHECK(sha256_hex_of_file(file).error().code == Code::kNotFound);
}

TEST_CASE("flags win over the environment, the environment over the file") {
  auto file = temp_file("[worker]\ngrace_ms = 7\ndevice = \"cpu-0\"\n");
  unsetenv("FREERIDE_GRACE_MS");
  SECTION("file") {
    Options o;
    REQUIRE(bind_config(o.app, "worker", file).ok());
    o.app.parse("", false);
    CHECK(o.grace_ms == 7);
    CHECK(o.device == "cpu-0");
  }
  SECTION("environment") {
    setenv("FREERIDE_GRACE_MS", "8", 1);
    Options o;
    REQUIRE(bind_config(o.app, "worker", file).ok());
    o.app.parse("", false);
    CHECK(o.grace_ms == 8);
    unsetenv("FREERIDE_GRACE_MS");
  }
  SECTION("flag") {
    Options o;
    REQUIRE(bind_config(o.app, "worker", file).ok());
    o.app.parse("--grace-ms 9", false);
    CHECK(o.grace_ms == 9);
  }
  std::filesystem::remove(file);
}

TEST_CASE("FREERIDE_LISTEN, which the manager's operator sets, does not move the live page") {
  const auto listens_at = [](const char* section) {
    CLI::App app;
    std::string listen = "its default";
    app.add_option("--listen", listen);
    REQUIRE(bind_config(app, section).ok());
    app.parse("", false);
    return listen;
  };
  setenv("FREERIDE_LISTEN", "tcp://*:7420", 1);
  CHECK(listens_at("manager") == "tcp://*:7420");
  CHECK(listens_at("web") == "its default");
  setenv("FREERIDE_WEB_LISTEN", "127.0.0.1:9000", 1);
  CHECK(listens_at("web") == "127.0.0.1:9000");
  CHECK(listens_at("manager") == "tcp://*:7420");
  setenv("FREERIDE_MANAGER_LISTEN", "tcp://*:7500", 1);
  CHECK(listens_at("manager") == "tcp://*:7500");
  for (const char* name : {"FREERIDE_LISTEN", "FREERIDE_WEB_LISTEN", "FREERIDE_MANAGER_LISTEN"}) unsetenv(name);
}

TEST_CASE("a configuration mistake is named with what is known") {
  auto file = temp_file("[worker]\ngrace = 7\n");
  Options o;
  auto status = bind_config(o.app, "worker", file);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().text().find("'grace'") != std::string::npos);
  CHECK(status.error().text().find("grace_ms") != std::string::npos);
  std::filesystem::remove(file);

  auto broken = temp_file("[worker\n");
  CHECK_FALSE(bind_config(o.app, "worker", broken).ok());
  std::filesystem::remove(broken);
  CHECK_FALSE(bind_config(o.app, "worker", "/nonexistent/x.toml").ok());
}

TEST_CASE("a section that begins with no letter is an error of the file, and ends no program") {
  auto file = temp_file("[&worker]\ngrace_ms = 7\n");  // toml++ asserts, or relies on it
  Options o;
  const auto status = bind_config(o.app, "worker", file);
  std::filesystem::remove(file);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message.find(file.string()) != std::string::npos);
}

TEST_CASE(
    "a file's wrong value, wrong section and key outside of sections are errors, not exceptions and not silence") {
  for (const auto& [text, named] : {std::pair("[worker]\ngrace_ms = \"lots\"\n", "grace_ms"),
                                    {"[wroker]\ngrace_ms = 7\n", "'wroker'"},
                                    {"grace_ms = 7\n", "'grace_ms'"},
                                    {"worker = 7\n", "write [worker]"}}) {
    auto file = temp_file(text);
    Options o;
    const auto status = bind_config(o.app, "worker", file);
    std::filesystem::remove(file);
    INFO(text);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().text().find(named) != std::string::npos);
  }
}

TEST_CASE("a section of lists is read by its keys, and what is no list is named") {
  auto file = temp_file("[accounts]\nvision = [\"alice\", \"bob@gpu7\"]\ntext = []\n[manager]\nbudget_pct = 1\n");
  const auto lists = read_lists("accounts", file);
  REQUIRE(lists.ok());
  CHECK(lists->size() == 2);
  CHECK(lists->at("vision") == std::vector<std::string>{"alice", "bob@gpu7"});
  CHECK(lists->at("text").empty());
  CHECK(read_lists("web", file)->empty());
  std::filesystem::remove(file);
  for (const char* text :
       {"[accounts]\nvision = \"alice\"\n", "[accounts]\nvision = [1]\n", "[accounts]\nvision = 7\n"}) {
    file = temp_file(text);
    const auto wrong = read_lists("accounts", file);
    std::filesystem::remove(file);
    INFO(text);
    REQUIRE_FALSE(wrong.ok());
    CHECK(wrong.error().message.find("[accounts] vision is no list of texts") != std::string::npos);
  }
}

TEST_CASE("a single setting of the file is read as its program would read it") {
  const auto file =
      temp_file("[manager]\nlisten = \"tcp://*:7420\"\nbudget_pct = 1\n[node]\ndevice = [\"a\", \"b\"]\n");
  CHECK(read_setting("manager", "listen", file).value() == "tcp://*:7420");
  CHECK(read_setting("manager", "budget_pct", file).value() == "1");
  CHECK(read_setting("node", "device", file).value() == "a:b");
  CHECK_FALSE(read_setting("manager", "keys_dir", file).value().has_value());
  CHECK_FALSE(read_setting("web", "listen", file).value().has_value());
  std::filesystem::remove(file);
  CHECK(read_setting("manager", "listen", file).error().code == Code::kInvalidArgument);
}

TEST_CASE("a list in the file is several values") {
  auto file = temp_file("[worker]\ndata = [\"/a\", \"/b\"]\n");
  CLI::App app;
  std::vector<std::string> data;
  app.add_option("--data", data)->delimiter(':');
  REQUIRE(bind_config(app, "worker", file).ok());
  std::filesystem::remove(file);
  app.parse("", false);
  CHECK(data == std::vector<std::string>{"/a", "/b"});
}

TEST_CASE("a number that is none is within nothing") {
  CLI::App app;
  double share = 1;
  app.add_option("--share", share)->check(within(0, 100));
  CHECK_NOTHROW(app.parse("--share 100"));
  CHECK(share == 100);
  for (const char* bad : {"nan", "-NaN", "inf", "100.1", "-1", "x"}) {
    CHECK_THROWS_AS(app.parse(std::string("--share ") + bad), CLI::ValidationError);
  }
}

TEST_CASE("plugin files are judged without running them") {
  CHECK(check_plugin_file("", "a.so").error().message == "a.so is empty");
  CHECK(check_plugin_file("#!/bin/sh\n", "a.so").error().message == "a.so is not an ELF file");
  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::stringstream bytes;
  bytes << self.rdbuf();
  std::string elf = bytes.str();
  CHECK(check_plugin_file(elf, "a.so").error().message.find("freeride_plugin_v1") != std::string::npos);
  // Every truncation and a machine change end in an error, never in a read past the end.
  for (size_t size = 1; size < elf.size(); size += elf.size() / 50) {
    CHECK_FALSE(check_plugin_file(std::string_view(elf).substr(0, size), "a.so").ok());
  }
  elf[18] = 0x28;
  CHECK(check_plugin_file(elf, "a.so").error().message.find("another machine") != std::string::npos);
}

TEST_CASE("an ELF bomb is refused by what it claims, not by going through it") {
  // As a file of 24 MB: each of its section headers says that all of it is dynamic symbols.
  constexpr uint64_t kSections = 60'000;
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
#if defined(__x86_64__)
  header.e_machine = EM_X86_64;
#else
  header.e_machine = EM_AARCH64;
#endif
  header.e_type = ET_DYN;
  header.e_shoff = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = kSections;
  Elf64_Shdr section{};
  section.sh_type = SHT_DYNSYM;
  const auto bomb = [&](uint64_t symbols) {
    section.sh_size = symbols * sizeof(Elf64_Sym);
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    for (uint64_t i = 0; i < kSections; ++i) bytes.append(reinterpret_cast<const char*>(&section), sizeof(section));
    bytes.resize(std::max<size_t>(bytes.size(), 24'000'000));
    return bytes;
  };
  const auto twice = check_plugin_file(bomb(1'000'000), "a.so");
  CHECK(twice.error().message == "a.so has more than one table of dynamic symbols");
  const auto many = check_plugin_file(bomb(kMaxPluginSymbols + 1), "a.so");
  CHECK(many.error().code == Code::kExhausted);
  CHECK(many.error().message == "a.so says that it has more than 1048576 dynamic symbols");
}

TEST_CASE("copy_tree takes files and folders, follows no link, keeps holes and limits") {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "freeride-copy-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  const fs::path root = name;
  fs::create_directories(root / "from/sub/deeper");
  fs::create_directories(root / "to");
  std::ofstream(root / "from/a") << "text";
  std::ofstream(root / "from/sub/b") << std::string(100'000, 'b');
  std::ofstream(root / "secret") << "not yours";
  fs::create_symlink(root / "secret", root / "from/link");
  fs::create_directory_symlink(root, root / "from/sub/up");
  REQUIRE(mkfifo((root / "from/fifo").c_str(), 0600) == 0);
  std::ofstream(root / "from/hole") << "x";
  fs::resize_file(root / "from/hole", 64 << 20);
  fs::permissions(root / "from/a", fs::perms(04777));
  std::ofstream(root / "to/hole") << "here before";
  const Fd from(open((root / "from").c_str(), O_RDONLY | O_DIRECTORY)),
      to(open((root / "to").c_str(), O_RDONLY | O_DIRECTORY));

  SECTION("all of it") {
    const auto copied = copy_tree(from.get(), to.get(), {.bytes = 80 << 20});
    REQUIRE(copied.ok());
    CHECK(copied->skipped == 3);
    CHECK(fs::file_size(root / "to/a") == 4);
    CHECK(fs::file_size(root / "to/sub/b") == 100'000);
    CHECK(fs::is_directory(root / "to/sub/deeper"));
    CHECK(fs::status(root / "to/a").permissions() == fs::perms(0644));
    CHECK_FALSE(fs::exists(fs::symlink_status(root / "to/link")));
    CHECK_FALSE(fs::exists(fs::symlink_status(root / "to/sub/up")));
    CHECK(fs::file_size(root / "to/hole") == 11);  // overwrites nothing
  }
  SECTION("holes are kept") {
    fs::remove(root / "to/hole");
    REQUIRE(copy_tree(from.get(), to.get(), {.bytes = 80 << 20}).ok());
    struct stat info {};
    REQUIRE(stat((root / "to/hole").c_str(), &info) == 0);
    CHECK(info.st_size == 64 << 20);
    CHECK(info.st_blocks * 512 < 1 << 20);
  }
  SECTION("no more than allowed") {
    const auto copied = copy_tree(from.get(), to.get(), {.bytes = 50'000});
    REQUIRE(copied.ok());
    CHECK(copied->bytes <= 50'000);
    CHECK_FALSE(fs::exists(root / "to/sub/b"));
    REQUIRE(copy_tree(from.get(), to.get(), {.bytes = 80 << 20, .depth = 0}).ok());
    CHECK_FALSE(fs::exists(root / "to/sub/b"));
  }
  SECTION("a file of nothing counts, too") {
    for (int i = 0; i < 100; ++i) std::ofstream(root / "from" / ("empty" + std::to_string(i)));
    const auto copied = copy_tree(from.get(), to.get(), {.bytes = 50 * kEntryBytes});
    REQUIRE(copied.ok());
    CHECK(copied->bytes <= 50 * kEntryBytes);
    CHECK(copied->skipped > 0);
    CHECK(std::distance(fs::recursive_directory_iterator(root / "to"), {}) <= 51);  // one was there before
  }
  fs::remove_all(root);
}

TEST_CASE("an interpreter's folder that holds a pipe for a pyvenv.cfg holds nobody up") {
  const auto prefix = temp_file("");
  std::filesystem::remove(prefix);
  std::filesystem::create_directories(prefix / "bin");
  std::ofstream(prefix / "bin/python3.11") << "not read";
  REQUIRE(mkfifo((prefix / "pyvenv.cfg").c_str(), 0600) == 0);
  CHECK_FALSE(find_python((prefix / "bin/python3.11").string()).ok());  // there is no library either
  std::filesystem::remove_all(prefix);
}

TEST_CASE("a log message is one line, whatever names it holds") {
  const auto path = temp_file("");
  const Fd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const Fd stderr_before(dup(STDERR_FILENO));
  const auto logger = spdlog::default_logger();
  init_log("base_test", {});
  dup2(file.get(), STDERR_FILENO);
  spdlog::info("plugin a\nb\033[31m.so added");
  spdlog::default_logger()->flush();
  dup2(stderr_before.get(), STDERR_FILENO);
  spdlog::set_default_logger(logger);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  CHECK(text.str().find("plugin a?b?[31m.so added\n") != std::string::npos);
}

namespace {
std::string logged(const LogOptions& options, const std::string& device, const std::function<void()>& log) {
  const auto path = temp_file("");
  const Fd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const Fd stderr_before(dup(STDERR_FILENO));
  const auto logger = spdlog::default_logger();
  spdlog::drop("json_test");
  init_log("json_test", options, device);
  dup2(file.get(), STDERR_FILENO);
  log();
  spdlog::default_logger()->flush();
  dup2(stderr_before.get(), STDERR_FILENO);
  spdlog::set_default_logger(logger);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  return text.str();
}
}  // namespace

TEST_CASE("a log line as JSON says when, what, who, and whom it is about") {
  const auto text = logged({"debug", "json"}, "cpu-0", [] {
    spdlog::warn("{}: back in the queue: {}", about_task("thumbs"), "a \"reason\"\n\033[31m\xff");
    spdlog::info("side {} is ended at once: overran", about_task("thumbs"));
    spdlog::debug("{} refuses its plan", about_worker("host-1:cpu-0"));
    spdlog::trace("{}: not wanted", about_task("other"));
    spdlog::error("{}: gone", about_job("1000/gpt"));
    spdlog::info("side task processes are left");
  });
  std::istringstream lines(text);
  std::vector<nlohmann::json> seen;
  for (std::string line; std::getline(lines, line);) seen.push_back(nlohmann::json::parse(line));
  REQUIRE(seen.size() == 5);
  for (const auto& one : seen) {
    CHECK(one.at("component") == "json_test");
    CHECK(one.at("device") == "cpu-0");
    CHECK(one.at("time").get<std::string>().size() == std::string("2026-01-02T03:04:05.678Z").size());
  }
  CHECK(seen[0].at("level") == "warning");
  CHECK(seen[0].at("task") == "thumbs");
  CHECK(seen[0].at("message").get<std::string>().find("a \"reason\"\n\033[31m") != std::string::npos);
  CHECK(seen[1].at("task") == "thumbs");
  CHECK(seen[2].at("worker") == "host-1:cpu-0");
  CHECK(seen[3].at("job") == "1000/gpt");
  CHECK(seen[1].at("message") == "side task thumbs is ended at once: overran");
  CHECK(seen[4].count("task") == 0);  // prose is not taken for a name
}

TEST_CASE("a closed terminal ends a daemon in good order, but one that was started with nohup") {
  const auto before = signal(SIGHUP, SIG_DFL);
  const sigset_t by_hand = end_signals();
  CHECK(sigismember(&by_hand, SIGHUP) == 1);
  signal(SIGHUP, SIG_IGN);
  const sigset_t set = end_signals();
  signal(SIGHUP, before);
  CHECK(sigismember(&set, SIGHUP) == 0);
  CHECK(sigismember(&set, SIGTERM) == 1);
}

TEST_CASE("SIGUSR1 and SIGUSR2, which Slurm sends to every step, end no daemon") {
  const pid_t child = fork();
  if (child == 0) {
    block_end_signals();
    raise(SIGUSR1);
    raise(SIGUSR2);
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

#ifndef FREERIDE_SANITIZED
TEST_CASE("a process that leaves memory to training fails its own allocations, and goes first when memory is short") {
  constexpr uint64_t kLimit = 256u << 20;
  const pid_t child = fork();
  if (child == 0) {
    if (!leave_memory_to_training(kLimit).ok()) _exit(2);
    std::ifstream score("/proc/self/oom_score_adj");
    int adjustment = 0;
    if (!(score >> adjustment) || adjustment <= 0) _exit(3);
    _exit(std::malloc(2 * kLimit) == nullptr && std::malloc(kLimit / 8) != nullptr ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

TEST_CASE("a client looks in the folder that it was given, else in its user's, else in the host's") {
  const char* before = std::getenv("FREERIDE_RUN_DIR");
  const std::string kept = before != nullptr ? before : "";
  unsetenv("FREERIDE_RUN_DIR");
  const auto own = Paths::defaults().run_dir;
  CHECK(Paths::run_dirs("/there") == std::vector<std::filesystem::path>{"/there"});
  CHECK(Paths::run_dirs().front() == own);
  CHECK(Paths::run_dirs().back() == "/run/freeride");
  CHECK(Paths::run_dirs().size() == (geteuid() == 0 ? 1 : 2));
  setenv("FREERIDE_RUN_DIR", "/other", 1);
  CHECK(Paths::run_dirs() == std::vector<std::filesystem::path>{"/other"});
  CHECK(Paths::run_dir_with("nothing.sock") == "/other");
  unsetenv("FREERIDE_RUN_DIR");
  if (!kept.empty()) setenv("FREERIDE_RUN_DIR", kept.c_str(), 1);
}
