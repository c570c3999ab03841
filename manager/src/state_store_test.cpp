// The state file: damaged, locked, older, newer, full, read-only; and what the core makes of it.
#include "state_store.hpp"

#include <spdlog/sinks/ostream_sink.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "freeride/bus/codec.hpp"
#include "sqlite.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {
/// While it lives no file of this process can grow past `bytes`: a full disk that needs no privilege.
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

TaskRow row_of(int64_t id) {
  TaskRow row;
  row.id = id;
  row.info.state.task = "t" + std::to_string(id);
  row.info.state.state = "SUBMITTED";
  row.info.load.params["k"] = "v";
  row.earlier.steps = 5;
  row.reserved_bytes = 77;
  row.stopping = true;
  return row;
}

// Makes of a file of the present schema version one of version 6, with an hour of a task in it.
constexpr const char* kAsVersion6 =
    "DROP TABLE phase; DROP TABLE task_usage;"
    "CREATE TABLE task_usage (hour INTEGER NOT NULL, task TEXT NOT NULL, user TEXT NOT NULL, job TEXT"
    " NOT NULL, step_ns INTEGER NOT NULL, harvested_ns INTEGER NOT NULL, overrun_ns INTEGER NOT NULL,"
    " steps INTEGER NOT NULL, PRIMARY KEY (hour, task, user, job)) WITHOUT ROWID;"
    "INSERT INTO task_usage VALUES (480000, 'a', 'ann', 'gpt', 4, 3, 2, 1);"
    "PRAGMA user_version = 6;";
}  // namespace

TEST_CASE("tasks, requests, profiles and jobs come back as they were saved") {
  TempDir dir;
  const auto file = dir.path / "state" / "freeride.db";
  {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    REQUIRE((*store)->add_task(row_of(1), "request", 1000).ok());
    REQUIRE((*store)->add_task(row_of(2), "other", 1000).ok());
    REQUIRE((*store)->remove_tasks({2}).ok());
    bus::Profile profile;
    profile.sha256 = std::string(64, 'a');
    profile.peak_bytes["host"] = 123;
    profile.steps = {3, 450, 456, 460, 470};
    profile.taken_unix_ms = 1000;
    REQUIRE((*store)->save_profiles({{"key", profile}, {"gone", profile}}).ok());
    REQUIRE((*store)->remove_profile("gone").ok());
    JobRow job;
    job.plan.job = job.previous_plan.job = "gpt";
    job.plan.seed = UINT64_MAX;
    job.plan.duty_pct = 55;
    job.previous_plan.from_iteration = 9;
    job.iterations = 10;
    job.overruns_ns = {1, 2, 3};
    job.stages[3] = {1, 2, 3, 4};
    job.phases["rollout"] = {5, 6, 7, 8, 9, {10, 11}};
    job.blocks = {{policy::BlockKind::kHarvested, 55, 10, 1e9, 1, 2e9}};
    REQUIRE((*store)->save_job(job, false).ok());
    REQUIRE((*store)->save_job(job, false).ok());
  }
  auto store = StateStore::open(file);
  REQUIRE(store.ok());
  auto tasks = (*store)->tasks();
  REQUIRE(tasks->size() == 1);
  CHECK((*tasks)[0].info.state.task == "t1");
  CHECK((*tasks)[0].info.load.params.at("k") == "v");
  CHECK((*tasks)[0].earlier.steps == 5);
  CHECK((*tasks)[0].reserved_bytes == 77);
  CHECK((*tasks)[0].stopping);
  CHECK((*store)->task_of_request("request")->value() == 1);
  CHECK_FALSE((*store)->task_of_request("unknown")->has_value());
  REQUIRE((*store)->profiles()->size() == 1);
  CHECK((*store)->profiles()->at("key").steps.p90_ns == 456);
  CHECK((*store)->profiles()->at("key").peak_bytes.at("host") == 123);
  auto jobs = (*store)->jobs();
  REQUIRE(jobs->size() == 1);
  const JobRow& job = (*jobs)[0];
  CHECK(job.plan.seed == UINT64_MAX);
  CHECK(job.plan.duty_pct == 55);
  CHECK(job.previous_plan.from_iteration == 9);
  CHECK(job.overruns_ns == std::vector<int64_t>{1, 2, 3});
  CHECK(job.stages.at(3).harvested_ns == 4);
  REQUIRE(job.phases.size() == 1);
  CHECK(job.phases.at("rollout").count == 5);
  CHECK(job.phases.at("rollout").harvested_ns == 8);
  CHECK(job.phases.at("rollout").overruns_seen == 9);
  CHECK(job.phases.at("rollout").overruns_ns == std::vector<int64_t>{10, 11});
  REQUIRE(job.blocks.size() == 2);  // appended by each save
  CHECK(job.blocks[0].stall_sum_ns == 2e9);
  REQUIRE((*store)->save_job(job, true).ok());
  CHECK((*(*store)->jobs())[0].blocks.size() == 2);  // the old ones gone, those of the row appended
  JobRow anew;                                       // another run of it
  anew.plan.job = anew.previous_plan.job = "gpt";
  REQUIRE((*store)->save_job(anew, true).ok());
  CHECK((*(*store)->jobs())[0].phases.empty());
  REQUIRE((*store)->remove_job("gpt").ok());
  CHECK((*store)->jobs()->empty());
}

TEST_CASE("tasks that an earlier manager saved, without cause, evidence and why, come back") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  TaskRow row = row_of(1);
  row.info.state.state = "STOPPED";
  row.info.state.reason = "kept";
  row.info.state.verdict.kind = "crashed";
  row.info.state.verdict.signal = 11;
  row.info.log_tail = "kept, too";
  {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    REQUIRE((*store)->add_task(row, "request", 1000).ok());
  }
  auto old = nlohmann::json::from_msgpack(bus::encode(row.info));
  REQUIRE(old["state"].erase("why") == 1);
  for (const char* field : {"cause", "exit_code", "evidence"}) REQUIRE(old["state"]["verdict"].erase(field) == 1);
  const auto bytes = nlohmann::json::to_msgpack(old);
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
  {
    Statement update(raw, "UPDATE task SET info = ?");
    REQUIRE(update.bind_blob(std::string(bytes.begin(), bytes.end())).run());
  }
  sqlite3_close(raw);
  auto store = StateStore::open(file);
  REQUIRE(store.ok());
  const auto tasks = (*store)->tasks();
  REQUIRE(tasks->size() == 1);
  const auto& state = tasks->front().info.state;
  CHECK(state.reason == "kept");
  CHECK(state.why.empty());
  CHECK(state.verdict.kind == "crashed");
  CHECK(state.verdict.signal == 11);
  CHECK(state.verdict.cause.empty());
  CHECK(state.verdict.exit_code == -1);
  CHECK(state.verdict.evidence.empty());
  CHECK(tasks->front().info.log_tail == "kept, too");
}

TEST_CASE("a state file of schema version 1 keeps its profiles: what they know still counts") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  REQUIRE(StateStore::open(file).ok());
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
  REQUIRE(sqlite3_exec(
              raw,
              "ALTER TABLE profile DROP COLUMN record; DROP TABLE fault; DROP TABLE fault_block;"
              "DROP TABLE drain; DROP TABLE task_usage; DROP TABLE training_usage; DROP TABLE batch; DROP TABLE phase;"
              "PRAGMA user_version = 1;"
              "INSERT INTO profile VALUES ('key', 1000, 2000, 3000);",
              nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(raw);
  auto store = StateStore::open(file);
  REQUIRE(store.ok());
  const auto profiles = (*store)->profiles();
  REQUIRE(profiles->size() == 1);
  CHECK(profiles->at("key").peak_bytes.at("") == 1000);
  CHECK(profiles->at("key").steps.p90_ns == 2000);
  CHECK(profiles->at("key").sha256.empty());
}

TEST_CASE("a state file of schema version 6 keeps what users have had, as their own accounts'") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  REQUIRE(StateStore::open(file).ok());
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
  REQUIRE(sqlite3_exec(raw, kAsVersion6, nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(raw);
  auto store = StateStore::open(file);
  REQUIRE(store.ok());
  for (const char* by : {"user", "account"}) {
    UsageSum usage(by, 0);
    while (!usage.done()) REQUIRE((*store)->go_on(usage).ok());
    const auto reply = usage.reply();
    REQUIRE(reply.rows.size() == 1);
    CHECK(reply.rows[0].name == "ann");
    CHECK(reply.rows[0].harvested_ns == 3);
  }
  const auto accounts = (*store)->account_usage(0);
  REQUIRE(accounts->size() == 1);
  CHECK(accounts->front().account == "ann");
  CHECK(accounts->front().hour == 480000);
}

TEST_CASE("a state file that cannot be used is one clear line, and is left as it is") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  SECTION("of a newer version") {
    {
      auto store = StateStore::open(file);
      REQUIRE(store.ok());
    }
    sqlite3* raw = nullptr;
    REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
    sqlite3_exec(raw, "PRAGMA user_version = 99", nullptr, nullptr, nullptr);
    sqlite3_close(raw);
    auto store = StateStore::open(file);
    REQUIRE_FALSE(store.ok());
    CHECK(store.error().code == Code::kVersion);
    CHECK(contains(store.error().message, "99"));
  }
  SECTION("in use") {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    auto second = StateStore::open(file);
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().code == Code::kAlreadyExists);
  }
  SECTION("a folder that cannot be made, or is a file") {
    std::ofstream(dir.path / "file") << "x";
    CHECK_FALSE(StateStore::open(dir.path / "file" / "freeride.db").ok());
    CHECK_FALSE(StateStore::open("/proc/none/freeride.db").ok());
  }
}

// ---- damage: nothing of it keeps the manager from starting, and nothing of it is lost
namespace {
std::vector<std::filesystem::path> kept_aside(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (contains(name, ".damaged-") && !contains(name, "-wal")) found.push_back(entry.path());
  }
  return found;
}

void execute_in(const std::filesystem::path& file, const std::string& sql) {
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
  REQUIRE(sqlite3_exec(raw, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(raw);
}

void overwrite(const std::filesystem::path& file, std::streamoff at, const std::string& bytes) {
  std::fstream raw(file, std::ios::in | std::ios::out | std::ios::binary);
  raw.seekp(at);
  raw << bytes;
}

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
}  // namespace

TEST_CASE("a state file with usage in it is not taken for a damaged one") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  for (int n = 0; n < 3; ++n) {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    TaskUsage more;
    more.step_ns = more.steps = 1;
    REQUIRE((*store)->add_usage({{{480'000 + n, "a", "ann", "gpt", "vision"}, more}}, {}).ok());
  }
  CHECK(kept_aside(dir.path).empty());
}

TEST_CASE("one task that cannot be read is left out, and kept in a copy of the state file") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  {
    auto store = StateStore::open(file);
    for (const int n : {1, 2, 3}) REQUIRE((*store)->add_task(row_of(n), "request" + std::to_string(n), 1000).ok());
  }
  SECTION("its bytes are no task") {
    execute_in(file, "UPDATE task SET info = x'c1c1' WHERE id = 2");
  }
  SECTION("it is another one's") {
    execute_in(file, "UPDATE task SET info = (SELECT info FROM task WHERE id = 1) WHERE id = 2");
  }
  SECTION("its number is none") {
    execute_in(file, "UPDATE task SET id = 9223372036854775807 WHERE id = 2");
  }
  {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    const auto tasks = (*store)->tasks();
    REQUIRE(tasks.ok());
    REQUIRE(tasks->size() == 2);
    CHECK((*tasks)[0].id == 1);
    CHECK((*tasks)[1].id == 3);
    CHECK((*store)->task_of_request("request3")->value() == 3);
  }
  REQUIRE(kept_aside(dir.path).size() == 1);
  auto again = StateStore::open(file);  // said and kept once
  CHECK((*again)->tasks()->size() == 2);
  CHECK(kept_aside(dir.path).size() == 1);
  auto copy = StateStore::open(kept_aside(dir.path).front());
  REQUIRE(copy.ok());
  CHECK((*copy)->tasks()->size() == 2);  // and the third, as it was: it is set aside from there, too
}

TEST_CASE("of a state file that is damaged in the middle, what is before and behind goes on") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  {
    auto store = StateStore::open(file);
    for (int n = 1; n < 300; ++n) REQUIRE((*store)->save_task(row_of(n)).ok());
    REQUIRE((*store)->save_profiles({{"key", bus::Profile{}}}).ok());
  }
  // Of the pages that tasks lie on, one in their middle.
  const auto whole = bytes_of(file);
  const auto at = static_cast<std::streamoff>(whole.find("t150") / 4096 * 4096);
  REQUIRE(at > 4096);
  overwrite(file, at, std::string(4096, '\xff'));
  const auto damaged = bytes_of(file);
  auto store = StateStore::open(file);
  REQUIRE(store.ok());
  const auto tasks = (*store)->tasks();
  REQUIRE(tasks.ok());
  CHECK(tasks->size() > 200);
  CHECK(tasks->size() < 299);
  CHECK(tasks->front().id == 1);
  CHECK(tasks->back().id == 299);
  CHECK((*store)->profiles()->size() == 1);
  REQUIRE((*store)->save_task(row_of(1000)).ok());
  REQUIRE(kept_aside(dir.path).size() == 1);
  CHECK(bytes_of(kept_aside(dir.path).front()) == damaged);
}

TEST_CASE("what is no state file at all is kept aside, and the manager starts with none") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  std::string bytes(10'000, 'x');
  SECTION("not a database") {}
  SECTION("only the beginning of one") {
    {
      auto store = StateStore::open(dir.path / "other.db");
      for (int n = 1; n < 100; ++n) REQUIRE((*store)->save_task(row_of(n)).ok());
    }
    bytes = bytes_of(dir.path / "other.db").substr(0, 5000);
  }
  SECTION("one whose first page is gone") {
    {
      auto store = StateStore::open(dir.path / "other.db");
      for (int n = 1; n < 100; ++n) REQUIRE((*store)->save_task(row_of(n)).ok());
    }
    bytes = bytes_of(dir.path / "other.db");
    bytes.replace(100, 3000, 3000, '\0');
  }
  std::ofstream(file) << bytes;
  auto store = StateStore::open(file);
  REQUIRE(store.ok());
  REQUIRE((*store)->tasks().ok());
  REQUIRE((*store)->jobs().ok());
  REQUIRE((*store)->save_task(row_of(1000)).ok());
  REQUIRE(kept_aside(dir.path).size() == 1);
  CHECK(bytes_of(kept_aside(dir.path).front()) == bytes);
}

TEST_CASE("a state file that is damaged anywhere opens, and gives what it gives") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  {
    auto store = StateStore::open(file);
    for (int n = 1; n < 40; ++n) REQUIRE((*store)->add_task(row_of(n), "r" + std::to_string(n), 1000).ok());
    JobRow job;
    job.plan.job = job.previous_plan.job = "gpt";
    job.blocks = {{policy::BlockKind::kHarvested, 55, 10, 1e9, 1, 2e9}};
    REQUIRE((*store)->save_job(job, false).ok());
  }
  const std::string whole = bytes_of(file);
  uint64_t random = 4711;
  const auto below = [&](uint64_t limit) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (random >> 33) % limit;
  };
  for (int n = 0; n < 200; ++n) {
    std::filesystem::remove_all(dir.path);
    std::filesystem::create_directories(dir.path);
    std::string bytes = whole;
    const auto at = below(bytes.size()), length = 1 + below(n % 2 == 0 ? 8 : 6000);
    for (auto i = at; i < std::min<uint64_t>(at + length, bytes.size()); ++i) bytes[i] = static_cast<char>(below(256));
    std::ofstream(file, std::ios::binary) << bytes;
    INFO(n << ": " << length << " bytes at " << at);
    auto store = StateStore::open(file);
    if (!store.ok()) {
      CHECK(store.error().code == Code::kVersion);  // the damage lies on the number itself
      continue;
    }
    REQUIRE((*store)->tasks().ok());
    REQUIRE((*store)->jobs().ok());
    REQUIRE((*store)->profiles().ok());
  }
}

// ---- upgrades: the way back to an earlier manager
namespace {
int64_t version_of(const std::filesystem::path& file) {
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open_v2(file.c_str(), &raw, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK);
  int64_t version = -1;
  {
    Statement query(raw, "PRAGMA user_version");
    if (query.row()) version = query.integer(0);
  }
  sqlite3_close(raw);
  return version;
}

// What it has, as an earlier manager sees it: tables and rows.
std::string content_of(const std::filesystem::path& file) {
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open_v2(file.c_str(), &raw, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK);
  std::string content;
  {
    Statement tables(raw, "SELECT name, sql, type FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name");
    while (tables.row()) {
      content += tables.bytes(1) + "\n";
      if (tables.bytes(2) != "table") continue;
      Statement rows(raw, ("SELECT * FROM " + tables.bytes(0)).c_str());
      while (rows.row()) {
        for (int i = 0; i < 16; ++i) content += rows.bytes(i) + "|";
        content += "\n";
      }
      CHECK(rows.ok());
    }
    Statement check(raw, "PRAGMA integrity_check");
    REQUIRE(check.row());
    CHECK(check.bytes(0) == "ok");
  }
  sqlite3_close(raw);
  return content;
}

// All that an upgrade keeps beside the file, or has left there.
std::set<std::string> copies_in(const std::filesystem::path& folder) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (contains(name, ".schema-")) found.insert(name);
  }
  return found;
}

void make_version_6(const std::filesystem::path& file, int64_t tasks = 3) {
  {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    for (int64_t n = 1; n <= tasks; ++n) REQUIRE((*store)->add_task(row_of(n), std::to_string(n), 1000).ok());
  }
  execute_in(file, kAsVersion6);
}

// What is logged while it lives.
class Log {
 public:
  Log() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_st>(text_)));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};
}  // namespace

TEST_CASE("before a state file of an older schema version is changed, a copy that an older manager can use is kept") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  const auto copy = dir.path / "freeride.db.schema-6";
  make_version_6(file);
  const std::string content = content_of(file);
  std::ofstream(dir.path / "freeride.db.schema-new") << "of a start that was interrupted";
  Log log;
  {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    REQUIRE((*store)->save_task(row_of(4)).ok());
  }
  CHECK(version_of(file) == StateStore::kSchemaVersion);
  CHECK(copies_in(dir.path) == std::set<std::string>{"freeride.db.schema-6"});
  CHECK((std::filesystem::status(copy).permissions() & std::filesystem::perms::all) ==
        static_cast<std::filesystem::perms>(0600));
  CHECK(version_of(copy) == 6);
  CHECK(content_of(copy) == content);
  const std::string said = log.text();
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
  CHECK(contains(said, copy.string()));
  CHECK(contains(said, "is a copy from before, for an older manager"));
  // Back, and the upgrade again: the newer copy takes the older one's place.
  std::filesystem::copy_file(copy, file, std::filesystem::copy_options::overwrite_existing);
  execute_in(file, "DELETE FROM task WHERE id = 1");
  const std::string later = content_of(file);
  REQUIRE(later != content);
  {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    const auto tasks = (*store)->tasks();
    REQUIRE(tasks->size() == 2);
    CHECK(tasks->front().id == 2);
  }
  CHECK(copies_in(dir.path) == std::set<std::string>{"freeride.db.schema-6"});
  CHECK(content_of(copy) == later);
}

TEST_CASE("the copy of an older state file has what was in the log of a manager that was killed") {
  TempDir dir;
  const auto live = dir.path / "live.db", file = dir.path / "state" / "freeride.db";
  std::filesystem::create_directories(file.parent_path());
  make_version_6(live);
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open(live.c_str(), &raw) == SQLITE_OK);
  REQUIRE(sqlite3_exec(raw,
                       "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;"
                       "INSERT INTO fault_block VALUES ('user', 'only-in-the-log', 1);",
                       nullptr, nullptr, nullptr) == SQLITE_OK);
  for (const char* end : {"", "-wal"}) std::filesystem::copy_file(live.string() + end, file.string() + end);
  sqlite3_close(raw);
  REQUIRE_FALSE(contains(bytes_of(file), "only-in-the-log"));
  REQUIRE(StateStore::open(file).ok());
  const auto copy = file.string() + ".schema-6";
  REQUIRE(std::filesystem::exists(copy));
  CHECK(contains(bytes_of(copy), "only-in-the-log"));  // in the file itself: it has no log
  CHECK_FALSE(std::filesystem::exists(copy + "-wal"));
}

TEST_CASE("of a new state file, of one of the present schema version and of a damaged one there is no copy") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  const auto other = dir.path / "freeride.db.schema-5";
  std::ofstream(other) << "of an upgrade before";
  REQUIRE(StateStore::open(file).ok());
  REQUIRE(StateStore::open(file).ok());
  CHECK(copies_in(dir.path) == std::set<std::string>{"freeride.db.schema-5"});
  std::filesystem::remove(file);
  make_version_6(file, 300);
  const auto at = static_cast<std::streamoff>(bytes_of(file).find("t150") / 4096 * 4096);
  overwrite(file, at, std::string(4096, '\xff'));
  {
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    CHECK((*store)->tasks()->size() > 200);
  }
  REQUIRE(kept_aside(dir.path).size() == 1);
  CHECK(version_of(kept_aside(dir.path).front()) == 6);
  CHECK(copies_in(dir.path) == std::set<std::string>{"freeride.db.schema-5"});
}

TEST_CASE("of the copies of older state files the last one is kept") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  make_version_6(file);
  const std::set<std::string> others = {"freeride.db.schema-6-mine", "freeride.db.schema-x", "freeride.db.schema-05",
                                        "other.db.schema-5"};
  for (const auto& name : others) std::ofstream(dir.path / name) << "not an upgrade's";
  for (const char* name : {"freeride.db.schema-2", "freeride.db.schema-5"}) std::ofstream(dir.path / name) << "old";
  REQUIRE(StateStore::open(file).ok());
  auto expected = others;
  expected.insert("freeride.db.schema-6");
  CHECK(copies_in(dir.path) == expected);
}

TEST_CASE("an older state file of which no copy can be made stays as it is, and the error says what to do") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  make_version_6(file, 300);
  std::ofstream(dir.path / "freeride.db.schema-5") << "of an upgrade before";
  const std::string content = content_of(file);
  std::set<std::string> beside = {"freeride.db.schema-5"};
  const auto check = [&](const Result<std::unique_ptr<StateStore>>& store) {
    REQUIRE_FALSE(store.ok());
    INFO(store.error().text());
    CHECK(contains(store.error().message,
                   "cannot copy " + file.string() + " to " + (dir.path / "freeride.db.schema-6").string() + ": "));
    CHECK(contains(store.error().hint, "start the manager again"));
    CHECK(contains(store.error().hint, "The file is unchanged"));
    CHECK(version_of(file) == 6);
    CHECK(content_of(file) == content);
    CHECK(copies_in(dir.path) == beside);
    CHECK(kept_aside(dir.path).empty());
  };
  SECTION("the disk is full") {
    {
      const auto size = std::filesystem::file_size(file);
      REQUIRE(size > 128 * 1024);
      FullDisk full(size / 2);
      check(StateStore::open(file));
    }
  }
  SECTION("something else has its name") {
    std::filesystem::create_directories(dir.path / "freeride.db.schema-6" / "x");
    beside.insert("freeride.db.schema-6");
    check(StateStore::open(file));
    std::filesystem::remove_all(dir.path / "freeride.db.schema-6");
  }
  SECTION("something else has the name under which it is written") {
    std::filesystem::create_directories(dir.path / "freeride.db.schema-new" / "x");
    beside.insert("freeride.db.schema-new");
    check(StateStore::open(file));
    std::filesystem::remove_all(dir.path / "freeride.db.schema-new");
  }
  // Then it can.
  auto store = StateStore::open(file);
  REQUIRE(store.ok());
  CHECK((*store)->tasks()->size() == 300);
  CHECK(content_of(dir.path / "freeride.db.schema-6") == content);
}

TEST_CASE("an older state file in a read-only state folder stays as it is") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  make_version_6(file);
  const std::string content = content_of(file);
  const bool root = geteuid() == 0;
  if (root) REQUIRE(chown(file.c_str(), 65534, static_cast<gid_t>(-1)) == 0);
  REQUIRE(chmod(dir.path.c_str(), 0555) == 0);
  if (root) REQUIRE(seteuid(65534) == 0);  // root may write anywhere
  auto store = StateStore::open(file);
  if (root) REQUIRE(seteuid(0) == 0);
  chmod(dir.path.c_str(), 0755);
  REQUIRE_FALSE(store.ok());
  CHECK(store.error().code == Code::kPermission);
  CHECK(copies_in(dir.path).empty());
  CHECK(version_of(file) == 6);
  CHECK(content_of(file) == content);
}

TEST_CASE("of a state file that is too new the error names the copy to go back to") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  const auto name = [&](int64_t version) { return file.string() + ".schema-" + std::to_string(version); };
  make_version_6(file);
  REQUIRE(StateStore::open(file).ok());
  REQUIRE(std::filesystem::exists(name(6)));
  execute_in(file, "PRAGMA user_version = 99");
  const auto hint = [&] {
    auto store = StateStore::open(file);
    REQUIRE_FALSE(store.ok());
    CHECK(store.error().code == Code::kVersion);
    return store.error().hint;
  };
  const auto back = [&](int64_t version) {
    return "stop the manager, move " + file.string() + " and " + file.string() + "-wal to another folder, copy " +
           name(version) + " to " + file.string() + ", and start the manager again";
  };
  SECTION("as it says") {
    CHECK(contains(hint(), back(6)));
    const auto aside = file.parent_path() / "aside";
    std::filesystem::create_directory(aside);
    for (const std::string& one : {file.string(), file.string() + "-wal"}) {
      if (std::filesystem::exists(one)) std::filesystem::rename(one, aside / std::filesystem::path(one).filename());
    }
    std::filesystem::copy_file(name(6), file);
    auto store = StateStore::open(file);
    REQUIRE(store.ok());
    CHECK((*store)->tasks()->size() == 3);
  }
  SECTION("the newest that this manager knows") {
    for (const int64_t version : {1, StateStore::kSchemaVersion, StateStore::kSchemaVersion + 1, 98})
      std::ofstream(name(version)) << "x";
    CHECK(contains(hint(), back(StateStore::kSchemaVersion)));
  }
  SECTION("there is none that it knows") {
    std::filesystem::rename(name(6), name(StateStore::kSchemaVersion + 1));
    CHECK(hint() == "start the newer freeride-manager, or move the file away");
  }
}

TEST_CASE("a state file is its owner's alone to read") {
  TempDir dir;
  const auto file = dir.path / "freeride.db";
  std::ofstream(file).close();  // as everybody may, from before
  auto store = StateStore::open(file);
  REQUIRE((*store)->save_task(row_of(1)).ok());
  for (const auto& entry : std::filesystem::directory_iterator(dir.path)) {
    INFO(entry.path());
    CHECK((entry.status().permissions() & std::filesystem::perms::all) == static_cast<std::filesystem::perms>(0600));
  }
}

TEST_CASE("a read-only state folder is refused, naming it") {
  TempDir dir;
  const bool root = geteuid() == 0;
  REQUIRE(chmod(dir.path.c_str(), 0555) == 0);
  if (root) REQUIRE(seteuid(65534) == 0);  // root may write anywhere
  auto store = StateStore::open(dir.path / "freeride.db");
  if (root) REQUIRE(seteuid(0) == 0);
  chmod(dir.path.c_str(), 0755);
  REQUIRE_FALSE(store.ok());
  CHECK(store.error().code == Code::kPermission);
  CHECK(contains(store.error().message, dir.path.string()));
  CHECK(contains(store.error().hint, "--state-dir"));
}

TEST_CASE("a disk that fills up fails commands, loses no task, and is caught up with later") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("before", 0)).ok());
  house.settle(worker);
  {
    FullDisk full(16);
    auto refused = house.load(load_of("during", 0));
    REQUIRE_FALSE(refused.ok());
    CHECK((refused.error().code == Code::kExhausted || refused.error().code == Code::kUnavailable));
    CHECK(contains(refused.error().message, "freeride.db"));
    CHECK(house.tasks().size() == 1);
    auto resume = house.resume("before");
    CHECK_FALSE(resume.ok());
    auto stop = house.stop("before");  // what protects training does not wait for a disk
    REQUIRE_FALSE(stop.ok());
    CHECK(contains(stop.error().message, "is being stopped, but that could not be recorded"));
    house.obey(worker);
    CHECK(house.state("before") == "STOPPED");
    house.pass(2, {&worker});
  }
  REQUIRE(house.load(load_of("after", 0)).ok());
  house.pass(8, {&worker});
  house.restart(false);
  CHECK(house.state("before") == "STOPPED");
  CHECK(house.verdict("before").kind == "stopped");
  CHECK(house.tasks().size() == 2);
}

TEST_CASE(
    "loads that come together on a full disk are refused each, there is no trace of them, and they can come again") {
  House house;
  const auto known = house.load(load_of("before"));
  REQUIRE(known.ok());
  std::vector<Ticket> asked;
  const auto ask = [&] {
    asked.clear();
    for (const char* name : {"a", "b", "c"}) {
      bus::Load load = load_of(name);
      load.sha256 = known->load.sha256;
      asked.push_back(++house.tickets);
      house.core->load_later(house.tickets, std::string("request-of-") + name, load);
    }
    house.core->load_waiting();
  };
  {
    FullDisk full(16);
    ask();
    for (const Ticket ticket : asked) {
      const auto refused = house.task_of(ticket);
      REQUIRE_FALSE(refused.ok());
      CHECK(contains(refused.error().message, "freeride.db"));
    }
    CHECK(house.tasks().size() == 1);
  }
  ask();
  for (const Ticket ticket : asked) CHECK(house.task_of(ticket).ok());
  CHECK(house.tasks().size() == 4);
  house.restart(false);
  CHECK(house.tasks().size() == 4);
}
