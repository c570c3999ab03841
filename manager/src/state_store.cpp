#include "state_store.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "freeride/base/fd.hpp"
#include "freeride/bus/codec.hpp"
#include "sqlite.hpp"
#include "state_salvage.hpp"
#include "text.hpp"
#include "usage_table.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kLastTask = int64_t{1} << 53;  // more than any manager counts to

// Appended to, never changed: a file of schema version n gets the steps from n on.
constexpr const char* kSchema[] = {R"sql(
  CREATE TABLE task (id INTEGER PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, info BLOB NOT NULL, earlier BLOB NOT NULL,
                     stopping INTEGER NOT NULL, reserved_bytes INTEGER NOT NULL);
  CREATE TABLE request (id TEXT PRIMARY KEY, task INTEGER NOT NULL, unix_ms INTEGER NOT NULL) WITHOUT ROWID;
  CREATE TABLE profile (key TEXT PRIMARY KEY, peak_memory_bytes INTEGER NOT NULL, step_ns INTEGER NOT NULL,
                        unix_ms INTEGER NOT NULL) WITHOUT ROWID;
  CREATE TABLE job (name TEXT PRIMARY KEY, generation INTEGER, last_iteration INTEGER, iterations INTEGER,
                    holdout_iterations INTEGER, holdout_sum_ns REAL, overruns_seen INTEGER, overruns BLOB) WITHOUT ROWID;
  CREATE TABLE holdout_plan (job TEXT, previous INTEGER, seed INTEGER, block_iterations INTEGER, from_iteration INTEGER,
                             share_pct REAL, duty_pct REAL, PRIMARY KEY (job, previous)) WITHOUT ROWID;
  CREATE TABLE stage (job TEXT, stage INTEGER, iteration_ns INTEGER, bubble_ns INTEGER, eligible_bubble_ns INTEGER,
                      harvested_ns INTEGER, PRIMARY KEY (job, stage)) WITHOUT ROWID;
  CREATE TABLE block (id INTEGER PRIMARY KEY, job TEXT, kind INTEGER, duty_pct REAL, iterations INTEGER, sum_ns REAL,
                      stalls INTEGER, stall_sum_ns REAL);
  CREATE INDEX block_job ON block (job);
)sql",
                                   R"sql(
  ALTER TABLE profile ADD COLUMN record BLOB;
)sql",
                                   R"sql(
  CREATE TABLE fault (id INTEGER PRIMARY KEY, unix_ms INTEGER NOT NULL, sha256 TEXT NOT NULL, user TEXT NOT NULL,
                      job TEXT NOT NULL, task TEXT NOT NULL);
  CREATE TABLE fault_block (scope TEXT NOT NULL, name TEXT NOT NULL, unix_ms INTEGER NOT NULL,
                            PRIMARY KEY (scope, name)) WITHOUT ROWID;
)sql",
                                   R"sql(
  CREATE TABLE drain (scope TEXT NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL,
                      PRIMARY KEY (scope, name)) WITHOUT ROWID;
)sql",
                                   R"sql(
  CREATE TABLE task_usage (hour INTEGER NOT NULL, task TEXT NOT NULL, user TEXT NOT NULL, job TEXT NOT NULL,
                           step_ns INTEGER NOT NULL, harvested_ns INTEGER NOT NULL, overrun_ns INTEGER NOT NULL,
                           steps INTEGER NOT NULL, PRIMARY KEY (hour, task, user, job)) WITHOUT ROWID;
  CREATE TABLE training_usage (hour INTEGER NOT NULL, job TEXT NOT NULL, gpu_ns INTEGER NOT NULL,
                               bubble_ns INTEGER NOT NULL, cost_ns INTEGER NOT NULL, cost_low_ns INTEGER NOT NULL,
                               cost_high_ns INTEGER NOT NULL, unmeasured_ns INTEGER NOT NULL,
                               PRIMARY KEY (hour, job)) WITHOUT ROWID;
)sql",
                                   R"sql(
  CREATE TABLE batch (name TEXT PRIMARY KEY, submitted_unix_ms INTEGER NOT NULL, info BLOB NOT NULL,
                      ledger BLOB NOT NULL) WITHOUT ROWID;
)sql",
                                   R"sql(
  ALTER TABLE task_usage RENAME TO task_usage_of_users;
  CREATE TABLE task_usage (hour INTEGER NOT NULL, task TEXT NOT NULL, user TEXT NOT NULL, job TEXT NOT NULL,
                           step_ns INTEGER NOT NULL, harvested_ns INTEGER NOT NULL, overrun_ns INTEGER NOT NULL,
                           steps INTEGER NOT NULL, account TEXT NOT NULL DEFAULT '',
                           PRIMARY KEY (hour, task, user, job, account)) WITHOUT ROWID;
  INSERT INTO task_usage (hour, task, user, job, step_ns, harvested_ns, overrun_ns, steps)
    SELECT hour, task, user, job, step_ns, harvested_ns, overrun_ns, steps FROM task_usage_of_users;
  DROP TABLE task_usage_of_users;
)sql",
                                   R"sql(
  CREATE TABLE phase (job TEXT, name TEXT, count INTEGER, idle_ns INTEGER, offered_ns INTEGER, harvested_ns INTEGER,
                      overruns_seen INTEGER, overruns BLOB, PRIMARY KEY (job, name)) WITHOUT ROWID;
)sql"};
static_assert(std::size(kSchema) == StateStore::kSchemaVersion);

bool execute(sqlite3* db, const std::string& sql) {
  return sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK;
}

Error describe(sqlite3* db, const std::filesystem::path& file, const std::string& doing) {
  const int code = db == nullptr ? SQLITE_NOMEM : sqlite3_errcode(db) & 0xff;
  const int os = db == nullptr ? 0 : sqlite3_system_errno(db);
  std::string why = db == nullptr ? "out of memory" : sqlite3_errmsg(db);
  if (os != 0 && code != SQLITE_CORRUPT && code != SQLITE_NOTADB) why += std::string(" (") + strerror(os) + ")";
  const std::string message = "cannot " + doing + " " + file.string() + ": " + why;
  switch (code) {
    case SQLITE_FULL:
      return {Code::kExhausted, message, "free space on that disk"};
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_CANTOPEN:
      return {Code::kPermission, message, "make the state folder writable or choose another with --state-dir"};
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return {Code::kAlreadyExists, message,
              "another manager uses this state folder: stop it or choose another --state-dir"};
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return {Code::kInternal, message, "start the manager again: it keeps what can be read"};
    default:
      return {Code::kUnavailable, message, "check that disk"};
  }
}

std::string pack(const std::vector<int64_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t)};
}
std::vector<int64_t> unpack(const std::string& bytes) {
  std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
  if (!values.empty()) memcpy(values.data(), bytes.data(), values.size() * sizeof(int64_t));
  return values;
}

std::filesystem::path copy_of(const std::filesystem::path& file, int64_t version) {
  return file.string() + ".schema-" + std::to_string(version);
}

// Those that lie beside `file`, by schema version.
std::map<int64_t, std::filesystem::path> copies_of(const std::filesystem::path& file) {
  std::map<int64_t, std::filesystem::path> copies;
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator at(file.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().string();
    int64_t version = 0;
    std::from_chars(name.data() + name.rfind('-') + 1, name.data() + name.size(), version);
    if (version > 0 && at->path() == copy_of(file, version) && at->is_regular_file(ignored))
      copies[version] = at->path();
  }
  return copies;
}

}  // namespace

StateStore::StateStore(sqlite3* db, std::filesystem::path file) : db_(db), file_(std::move(file)) {}
StateStore::~StateStore() {
  batch_.reset();
  sqlite3_close(db_);
}

Error StateStore::error(const std::string& doing) const {
  return describe(db_, file_, doing);
}

Result<std::unique_ptr<StateStore>> StateStore::open(const std::filesystem::path& file) {
  std::error_code ec;
  std::filesystem::create_directories(file.parent_path(), ec);
  if (ec) {
    return errno_error("cannot make the state folder " + file.parent_path().string(), ec.value(),
                       "choose another with --state-dir");
  }
  auto store = open_file(file);
  if (store || store.error().code != Code::kInternal) return store;
  return open_anew(file, store.error());
}

Result<std::unique_ptr<StateStore>> StateStore::open_file(const std::filesystem::path& file) {
  // Parameters and environments of tasks are their users' own.
  if (const Fd made(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)); made.valid()) fchmod(made.get(), 0600);
  sqlite3* db = nullptr;
  const int rc =
      sqlite3_open_v2(file.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<StateStore> store(new StateStore(db, file));
  if (rc != SQLITE_OK) return describe(db, file, "open");
  sqlite3_extended_result_codes(db, 1);
  sqlite3_busy_timeout(db, 200);
  // Exclusive: no second manager on the same state, and no shared-memory file beside it.
  if (!execute(db,
               "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
               "PRAGMA journal_size_limit = 4194304; BEGIN IMMEDIATE; COMMIT;")) {
    return store->error("open");
  }
  const auto version = store->version();  // first: what a newer manager has written may look damaged to this one
  if (!version) return version.error();
  {
    // SQLite 3.40 says so of each row of this table, without cause: its key's columns are not its first ones.
    constexpr std::string_view kUntrue = "NULL value in task_usage.";
    Statement check(db, "PRAGMA quick_check(2000000000)");
    while (check.row()) {
      const std::string said = check.bytes(0);
      if (said != "ok" && said.rfind(kUntrue, 0) != 0) return Error{Code::kInternal, said, ""};
    }
    if (!check.ok()) return store->error("read");
  }
  if (auto migrated = store->migrate(*version); !migrated) return migrated.error();
  return store;
}

Result<std::unique_ptr<StateStore>> StateStore::open_anew(const std::filesystem::path& file, const Error& damage) {
  const auto aside = move_aside(file);
  if (!aside) return aside.error();
  auto store = open_file(file);
  if (!store) return store;
  const auto counts = copy_readable(*aside, (*store)->db_);
  std::string kept;
  for (const auto& [table, rows] : counts) kept += (kept.empty() ? "" : ", ") + std::to_string(rows) + " of " + table;
  spdlog::error("the state file {} is damaged ({}) and is kept as {}; what can be read of it is used: {}",
                file.string(), in_quotes(damage.message), aside->string(), kept.empty() ? "nothing" : "rows, " + kept);
  return store;
}

Result<int64_t> StateStore::version() {
  int64_t version = 0;
  Statement query(db_, "PRAGMA user_version");
  if (query.row()) version = query.integer(0);
  if (!query.ok()) return error("read");
  if (version > kSchemaVersion) {
    std::string hint = "start the newer freeride-manager, or move the file away";
    const auto copies = copies_of(file_);
    if (const auto after = copies.upper_bound(kSchemaVersion); after != copies.begin()) {
      const std::string file = file_.string(), copy = std::prev(after)->second.string();
      // The log with its file: it would be carried over into the copy.
      hint = "start the newer freeride-manager, or go back to " + copy +
             ", which lacks what has changed since that upgrade: stop the manager, move " + file + " and " + file +
             "-wal to another folder, copy " + copy + " to " + file + ", and start the manager again";
    }
    return Error{Code::kVersion,
                 file_.string() + " has schema version " + std::to_string(version) + ", this manager knows " +
                     std::to_string(kSchemaVersion),
                 hint};
  }
  if (version < 0) return Error{Code::kInternal, "schema version " + std::to_string(version), ""};
  return version;
}

Status StateStore::keep_copy(int64_t version) {
  const auto copy = copy_of(file_, version);
  const std::string fresh = file_.string() + ".schema-new";
  const std::string doing = "copy " + file_.string() + " to";
  const auto drop = [&] {
    for (const char* end : {"", "-journal"}) unlink((fresh + end).c_str());
  };
  const auto refuse = [&](Error error) {
    drop();
    error.hint = std::string(error.code == Code::kPermission ? "make the state folder writable"
                                                             : "free space on that disk, or check it") +
                 ", and start the manager again: only with that copy does it change the file to schema version " +
                 std::to_string(kSchemaVersion) + ". The file is unchanged";
    return error;
  };
  const auto refuse_errno = [&] {
    Error error = errno_error("cannot " + doing + " " + copy.string(), errno);
    if (error.code == Code::kInternal) error.code = Code::kUnavailable;  // the state file is not damaged
    return refuse(std::move(error));
  };
  drop();  // of a start that was interrupted
  const Fd fd(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return refuse_errno();
  Statement backup(db_, "VACUUM INTO ?");
  if (!backup.bind(fresh).run()) {
    Error error = describe(db_, copy, doing);
    if (error.code != Code::kInternal) return refuse(std::move(error));
    drop();
    return error;
  }
  if (fsync(fd.get()) != 0 || rename(fresh.c_str(), copy.c_str()) != 0) return refuse_errno();
  if (const Fd folder(::open(file_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); folder.valid())
    fsync(folder.get());
  spdlog::info(
      "the state file {} is changed from schema version {} to {}; {} is a copy from before, for an older manager",
      file_.string(), version, kSchemaVersion, copy.string());
  return {};
}

Status StateStore::migrate(int64_t version) {
  if (version == kSchemaVersion) return {};
  if (version > 0) {
    if (auto kept = keep_copy(version); !kept) return kept;
  }
  Transaction transaction(db_);
  if (!transaction.ok()) return error("write");
  for (int64_t step = version; step < kSchemaVersion; ++step) {
    if (!execute(db_, kSchema[step])) return error("write");
  }
  if (!execute(db_, "PRAGMA user_version = " + std::to_string(kSchemaVersion)) || !transaction.commit())
    return error("write");
  if (version == 0) return {};
  for (const auto& [of, copy] : copies_of(file_)) {
    std::error_code ignored;
    if (of != version) std::filesystem::remove(copy, ignored);
  }
  return {};
}

Result<std::vector<TaskRow>> StateStore::tasks() {
  std::vector<TaskRow> rows;
  std::vector<int64_t> damaged;
  {
    Statement query(db_, "SELECT id, info, earlier, stopping, reserved_bytes, name, state FROM task ORDER BY id");
    while (query.row()) {
      const int64_t id = query.integer(0);
      auto info = bus::decode<bus::TaskInfo>(query.bytes(1));
      auto earlier = bus::decode<bus::TaskCounters>(query.bytes(2));
      if (!info || !earlier || id <= 0 || id > kLastTask || info->state.task != query.bytes(5) ||
          info->state.state != query.bytes(6)) {
        damaged.push_back(id);
        continue;
      }
      rows.push_back({id, std::move(*info), std::move(*earlier), query.integer(3) != 0, query.integer(4)});
    }
    if (!query.ok()) return error("read");
  }
  if (!damaged.empty()) leave_out(damaged);
  return rows;
}

void StateStore::leave_out(const std::vector<int64_t>& tasks) {
  std::string numbers;
  for (const int64_t id : tasks) numbers += (numbers.empty() ? "" : ", ") + std::to_string(id);
  const std::string what = "in the state file " + file_.string() + " task " + numbers + " cannot be read";
  const auto copy = name_aside(file_);
  Statement backup(db_, "VACUUM INTO ?");
  if (!backup.bind(copy.string()).run()) {
    spdlog::error("{} and continues without: {}", what, error("copy").message);
    return;
  }
  chmod(copy.c_str(), 0600);
  Transaction transaction(db_);
  bool removed = transaction.ok();
  for (const int64_t id : tasks) {
    for (const char* sql : {"DELETE FROM task WHERE id = ?", "DELETE FROM request WHERE task = ?"}) {
      Statement remove(db_, sql);
      removed = removed && remove.bind(id).run();
    }
  }
  removed = removed && transaction.commit();
  spdlog::error("{}; the other tasks continue, and a copy with it is kept as {}{}", what, copy.string(),
                removed ? "" : " (it could not be removed: " + error("write").message + ")");
}

Status StateStore::save_task(const TaskRow& task) {
  Statement put(
      db_,
      "INSERT OR REPLACE INTO task (id, name, state, info, earlier, stopping, reserved_bytes) VALUES (?,?,?,?,?,?,?)");
  put.bind(task.id).bind(task.info.state.task).bind(task.info.state.state).bind_blob(bus::encode(task.info));
  put.bind_blob(bus::encode(task.earlier)).bind(task.stopping).bind(task.reserved_bytes);
  if (!put.run()) return error("write");
  return {};
}

bool StateStore::begin_batch() {
  if (batch_) return false;
  batch_ = std::make_unique<Transaction>(db_);
  if (!batch_->ok()) batch_.reset();
  return batch_ != nullptr;
}

void StateStore::drop_batch() {
  batch_.reset();
}

Status StateStore::end_batch() {
  const auto batch = std::exchange(batch_, nullptr);
  // An error that ended the transaction, such as a full disk, has undone all of it.
  if (sqlite3_get_autocommit(db_) != 0 || !batch->commit()) return error("write");
  return {};
}

Status StateStore::add_task(const TaskRow& task, const std::string& request_id, int64_t unix_ms) {
  Transaction transaction(db_);
  if (!transaction.ok()) return error("write");
  if (auto saved = save_task(task); !saved) return saved;
  Statement put(db_, "INSERT OR REPLACE INTO request (id, task, unix_ms) VALUES (?,?,?)");
  put.bind(request_id).bind(task.id).bind(unix_ms);
  if (!put.run() || !transaction.commit()) return error("write");
  return {};
}

Status StateStore::forget_requests(int64_t before_unix_ms) {
  Statement old(db_, "DELETE FROM request WHERE unix_ms < ?");
  if (!old.bind(before_unix_ms).run()) return error("write");
  return {};
}

Result<int64_t> StateStore::newest_request_ms() {
  Statement query(db_, "SELECT MAX(unix_ms) FROM request");
  const int64_t newest = query.row() ? query.integer(0) : 0;
  if (!query.ok()) return error("read");
  return newest;
}

Status StateStore::remove_tasks(const std::vector<int64_t>& ids) {
  Transaction transaction(db_);
  if (!transaction.ok()) return error("write");
  for (const int64_t id : ids) {
    Statement remove(db_, "DELETE FROM task WHERE id = ?");
    if (!remove.bind(id).run()) return error("write");
  }
  if (!transaction.commit()) return error("write");
  return {};
}

Result<std::optional<int64_t>> StateStore::task_of_request(const std::string& request_id) {
  Statement query(db_, "SELECT task FROM request WHERE id = ?");
  query.bind(request_id);
  std::optional<int64_t> id;
  if (query.row()) id = query.integer(0);
  if (!query.ok()) return error("read");
  return id;
}

Result<std::map<std::string, bus::Profile>> StateStore::profiles() {
  std::map<std::string, bus::Profile> profiles;
  Statement query(db_, "SELECT key, peak_memory_bytes, step_ns, record FROM profile");
  while (query.row()) {
    auto record = bus::decode<bus::Profile>(query.bytes(3));
    if (record && !record->sha256.empty()) {
      profiles[query.bytes(0)] = std::move(*record);
      continue;
    }
    bus::Profile& old = profiles[query.bytes(0)];
    old.peak_bytes[""] = query.integer(1);
    old.steps.p50_ns = old.steps.p90_ns = query.integer(2);
  }
  if (!query.ok()) return error("read");
  return profiles;
}

Status StateStore::save_profiles(const std::map<std::string, bus::Profile>& profiles) {
  Transaction transaction(db_);
  if (!transaction.ok()) return error("write");
  for (const auto& [key, profile] : profiles) {
    int64_t peak_bytes = 0;
    for (const auto& [where, bytes] : profile.peak_bytes) peak_bytes = std::max(peak_bytes, bytes);
    Statement put(
        db_, "INSERT OR REPLACE INTO profile (key, peak_memory_bytes, step_ns, unix_ms, record) VALUES (?,?,?,?,?)");
    put.bind(key).bind(peak_bytes).bind(profile.steps.p90_ns).bind(profile.taken_unix_ms);
    if (!put.bind_blob(bus::encode(profile)).run()) return error("write");
  }
  if (!transaction.commit()) return error("write");
  return {};
}

Status StateStore::remove_profile(const std::string& key) {
  Statement remove(db_, "DELETE FROM profile WHERE key = ?");
  if (!remove.bind(key).run()) return error("write");
  return {};
}

Result<std::vector<JobRow>> StateStore::jobs() {
  std::map<std::string, JobRow> rows;
  Statement jobs(
      db_,
      "SELECT name, generation, last_iteration, iterations, holdout_iterations, holdout_sum_ns, overruns_seen,"
      " overruns FROM job");
  while (jobs.row()) {
    JobRow& row = rows[jobs.bytes(0)];
    row.plan.job = row.previous_plan.job = jobs.bytes(0);
    row.generation = jobs.unsigned_integer(1);
    row.last_iteration = jobs.unsigned_integer(2);
    row.iterations = jobs.unsigned_integer(3);
    row.holdout_iterations = jobs.unsigned_integer(4);
    row.holdout_sum_ns = jobs.real(5);
    row.overruns_seen = jobs.unsigned_integer(6);
    row.overruns_ns = unpack(jobs.bytes(7));
  }
  Statement plans(
      db_, "SELECT job, previous, seed, block_iterations, from_iteration, share_pct, duty_pct FROM holdout_plan");
  while (plans.row()) {
    const auto row = rows.find(plans.bytes(0));
    if (row == rows.end()) continue;
    auto& plan = plans.integer(1) != 0 ? row->second.previous_plan : row->second.plan;
    plan = {
        plans.bytes(0), plans.unsigned_integer(2), plans.unsigned_integer(3), plans.unsigned_integer(4), plans.real(5),
        plans.real(6)};
  }
  Statement stages(db_, "SELECT job, stage, iteration_ns, bubble_ns, eligible_bubble_ns, harvested_ns FROM stage");
  while (stages.row()) {
    const auto row = rows.find(stages.bytes(0));
    if (row == rows.end()) continue;
    row->second.stages[static_cast<uint32_t>(stages.integer(1))] = {stages.integer(2), stages.integer(3),
                                                                    stages.integer(4), stages.integer(5)};
  }
  Statement phases(db_,
                   "SELECT job, name, count, idle_ns, offered_ns, harvested_ns, overruns_seen, overruns FROM phase");
  while (phases.row()) {
    const auto row = rows.find(phases.bytes(0));
    if (row == rows.end()) continue;
    row->second.phases[phases.bytes(1)] = {phases.unsigned_integer(2), phases.integer(3),
                                           phases.integer(4),          phases.integer(5),
                                           phases.unsigned_integer(6), unpack(phases.bytes(7))};
  }
  Statement blocks(db_, "SELECT job, kind, duty_pct, iterations, sum_ns, stalls, stall_sum_ns FROM block ORDER BY id");
  while (blocks.row()) {
    const auto row = rows.find(blocks.bytes(0));
    if (row == rows.end() || blocks.integer(1) < 0 || blocks.integer(1) > 2) continue;
    if (!std::isfinite(blocks.real(2)) || !std::isfinite(blocks.real(4)) || !std::isfinite(blocks.real(6))) continue;
    row->second.blocks.push_back({static_cast<policy::BlockKind>(blocks.integer(1)), blocks.real(2),
                                  blocks.unsigned_integer(3), blocks.real(4), blocks.unsigned_integer(5),
                                  blocks.real(6)});
  }
  if (!jobs.ok() || !plans.ok() || !stages.ok() || !phases.ok() || !blocks.ok()) return error("read");
  std::vector<JobRow> result;
  result.reserve(rows.size());
  for (auto& [name, row] : rows) result.push_back(std::move(row));
  return result;
}

// A new run has none of the last one's.
bool StateStore::save_phases(const JobRow& row) {
  Statement drop(db_, "DELETE FROM phase WHERE job = ?");
  if (!drop.bind(row.plan.job).run()) return false;
  for (const auto& [name, phase] : row.phases) {
    Statement put(db_, "INSERT INTO phase VALUES (?,?,?,?,?,?,?,?)");
    put.bind(row.plan.job).bind(name).bind(phase.count).bind(phase.idle_ns).bind(phase.offered_ns);
    put.bind(phase.harvested_ns).bind(phase.overruns_seen).bind_blob(pack(phase.overruns_ns));
    if (!put.run()) return false;
  }
  return true;
}

Status StateStore::save_job(const JobRow& row, bool forget_blocks) {
  const std::string& name = row.plan.job;
  Transaction transaction(db_);
  if (!transaction.ok()) return error("write");
  {
    Statement put(
        db_,
        "INSERT OR REPLACE INTO job (name, generation, last_iteration, iterations, holdout_iterations, holdout_sum_ns,"
        " overruns_seen, overruns) VALUES (?,?,?,?,?,?,?,?)");
    put.bind(name).bind(row.generation).bind(row.last_iteration).bind(row.iterations).bind(row.holdout_iterations);
    put.bind(row.holdout_sum_ns).bind(row.overruns_seen).bind_blob(pack(row.overruns_ns));
    if (!put.run()) return error("write");
  }
  for (const bool previous : {false, true}) {
    const auto& plan = previous ? row.previous_plan : row.plan;
    Statement put(db_, "INSERT OR REPLACE INTO holdout_plan VALUES (?,?,?,?,?,?,?)");
    put.bind(name).bind(previous).bind(plan.seed).bind(plan.block_iterations).bind(plan.from_iteration);
    if (!put.bind(plan.share_pct).bind(plan.duty_pct).run()) return error("write");
  }
  for (const auto& [stage, totals] : row.stages) {
    Statement put(db_, "INSERT OR REPLACE INTO stage VALUES (?,?,?,?,?,?)");
    put.bind(name)
        .bind(int64_t{stage})
        .bind(totals.iteration_ns)
        .bind(totals.bubble_ns)
        .bind(totals.eligible_bubble_ns);
    if (!put.bind(totals.harvested_ns).run()) return error("write");
  }
  if (!save_phases(row)) return error("write");
  Statement drop(db_, forget_blocks ? "DELETE FROM block WHERE job = ?"
                                    : "DELETE FROM block WHERE job = ?1 AND id <= (SELECT id FROM block WHERE job = ?1"
                                      " ORDER BY id DESC LIMIT 1 OFFSET 4096)");
  if (!drop.bind(name).run()) return error("write");
  for (const auto& block : row.blocks) {
    Statement put(
        db_,
        "INSERT INTO block (job, kind, duty_pct, iterations, sum_ns, stalls, stall_sum_ns) VALUES (?,?,?,?,?,?,?)");
    put.bind(name)
        .bind(static_cast<int64_t>(block.kind))
        .bind(block.duty_pct)
        .bind(block.iterations)
        .bind(block.sum_ns);
    if (!put.bind(block.stalls).bind(block.stall_sum_ns).run()) return error("write");
  }
  if (!transaction.commit()) return error("write");
  return {};
}

Status StateStore::remove_job(const std::string& job) {
  Transaction transaction(db_);
  if (!transaction.ok()) return error("write");
  for (const char* sql :
       {"DELETE FROM job WHERE name = ?", "DELETE FROM holdout_plan WHERE job = ?", "DELETE FROM stage WHERE job = ?",
        "DELETE FROM phase WHERE job = ?", "DELETE FROM block WHERE job = ?"}) {
    Statement remove(db_, sql);
    if (!remove.bind(job).run()) return error("write");
  }
  if (!transaction.commit()) return error("write");
  return {};
}

Result<std::vector<FaultRow>> StateStore::faults() {
  std::vector<FaultRow> rows;
  Statement query(db_, "SELECT unix_ms, sha256, user, job, task FROM fault ORDER BY id");
  while (query.row())
    rows.push_back({query.integer(0), query.bytes(1), query.bytes(2), query.bytes(3), query.bytes(4)});
  if (!query.ok()) return error("read");
  return rows;
}

Result<StateStore::FaultBlocks> StateStore::fault_blocks() {
  FaultBlocks blocks;
  Statement query(db_, "SELECT scope, name, unix_ms FROM fault_block");
  while (query.row()) blocks[{query.bytes(0), query.bytes(1)}] = query.integer(2);
  if (!query.ok()) return error("read");
  return blocks;
}

Status StateStore::add_fault(const FaultRow& fault, const FaultBlocks& blocks, int64_t before_unix_ms) {
  Transaction transaction(db_);
  if (!transaction.ok()) return error("write");
  Statement old(db_, "DELETE FROM fault WHERE unix_ms <= ?");
  Statement put(db_, "INSERT INTO fault (unix_ms, sha256, user, job, task) VALUES (?,?,?,?,?)");
  put.bind(fault.unix_ms).bind(fault.sha256).bind(fault.user).bind(fault.job).bind(fault.task);
  if (!old.bind(before_unix_ms).run() || !put.run()) return error("write");
  for (const auto& [key, since] : blocks) {
    Statement block(db_, "INSERT OR IGNORE INTO fault_block (scope, name, unix_ms) VALUES (?,?,?)");
    if (!block.bind(key.first).bind(key.second).bind(since).run()) return error("write");
  }
  if (!transaction.commit()) return error("write");
  return {};
}

Result<StateStore::Drained> StateStore::drains() {
  Drained drained;
  Statement query(db_, "SELECT scope, name, number FROM drain");
  while (query.row()) drained[{query.bytes(0), query.bytes(1)}] = std::max<uint64_t>(1, query.unsigned_integer(2));
  if (!query.ok()) return error("read");
  return drained;
}

Status StateStore::save_drain(const std::string& scope, const std::string& name, uint64_t number) {
  Statement put(db_, "INSERT OR REPLACE INTO drain (scope, name, number) VALUES (?,?,?)");
  if (!put.bind(scope).bind(name).bind(number).run()) return error("write");
  return {};
}

Status StateStore::remove_drain(const std::string& scope, const std::string& name) {
  Statement remove(db_, "DELETE FROM drain WHERE scope = ? AND name = ?");
  if (!remove.bind(scope).bind(name).run()) return error("write");
  return {};
}

Status StateStore::add_usage(const std::map<TaskUsageKey, TaskUsage>& tasks,
                             const std::vector<TrainingUsageRow>& trainings) {
  Transaction transaction(db_);
  if (!transaction.ok() || !add_usage_rows(db_, tasks, trainings) || !transaction.commit()) return error("write");
  return {};
}

Status StateStore::thin_usage(int64_t thin_before, int64_t drop_before) {
  Transaction transaction(db_);
  if (!transaction.ok() || !thin_usage_rows(db_, thin_before, drop_before) || !transaction.commit())
    return error("write");
  return {};
}

Result<std::pair<int64_t, int64_t>> StateStore::usage_hours() {
  std::pair<int64_t, int64_t> hours;
  if (!read_usage_hours(db_, hours.first, hours.second)) return error("read");
  return hours;
}

Status StateStore::go_on(UsageSum& sum) {
  if (!sum.go_on(db_)) return error("read");
  return {};
}

Result<std::vector<AccountUsageRow>> StateStore::account_usage(int64_t hour) {
  std::vector<AccountUsageRow> rows;
  if (!read_account_usage(db_, hour, rows)) return error("read");
  return rows;
}

Result<std::vector<BatchRow>> StateStore::batches() {
  std::vector<BatchRow> rows;
  Statement query(db_, "SELECT info, ledger, name FROM batch ORDER BY submitted_unix_ms, name");
  while (query.row()) {
    auto info = bus::decode<bus::BatchInfo>(query.bytes(0));
    if (info && info->name == query.bytes(2)) {
      rows.push_back({std::move(*info), query.bytes(1)});
    } else {
      spdlog::error("in the state file {} the batch {} cannot be read; it is left alone", file_.string(),
                    in_quotes(query.bytes(2)));
    }
  }
  if (!query.ok()) return error("read");
  return rows;
}

Status StateStore::save_batch(const BatchRow& row) {
  Statement put(db_, "INSERT OR REPLACE INTO batch (name, submitted_unix_ms, info, ledger) VALUES (?,?,?,?)");
  put.bind(row.info.name).bind(row.info.submitted_unix_ms).bind_blob(bus::encode(row.info)).bind_blob(row.ledger);
  if (!put.run()) return error("write");
  return {};
}

Status StateStore::remove_batch(const std::string& name) {
  Statement remove(db_, "DELETE FROM batch WHERE name = ?");
  if (!remove.bind(name).run()) return error("write");
  return {};
}

Status StateStore::remove_fault_block(const std::string& scope, const std::string& name) {
  Transaction transaction(db_);
  if (!transaction.ok()) return error("write");
  Statement remove(db_, "DELETE FROM fault_block WHERE scope = ? AND name = ?");
  Statement forget(db_, scope == "plugin" ? "UPDATE fault SET sha256 = '' WHERE sha256 = ?"
                        : scope == "user" ? "UPDATE fault SET user = '' WHERE user = ?"
                                          : "UPDATE fault SET job = '' WHERE job = ?");
  if (!remove.bind(scope).bind(name).run() || !forget.bind(name).run() || !transaction.commit()) return error("write");
  return {};
}

}  // namespace freeride::manager
