#include "state_salvage.hpp"

#include <array>
#include <ctime>
#include <system_error>
#include <vector>

#include "sqlite.hpp"

namespace freeride::manager {
namespace {

namespace fs = std::filesystem;

fs::path log_of(const fs::path& file) {
  return file.string() + "-wal";
}

std::string list(const std::vector<std::string>& names, const char* after = "") {
  std::string text;
  for (const auto& name : names) text.append(text.empty() ? "" : ", ").append(name).append(after);
  return text;
}

struct Table {
  std::string name;
  std::vector<std::string> columns, key;
};

std::vector<Table> tables_of(sqlite3* db) {
  std::vector<Table> tables;
  Statement names(db, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name");
  while (names.row()) tables.push_back({names.bytes(0), {}, {}});
  for (Table& table : tables) {
    Statement columns(db, "SELECT name, pk FROM pragma_table_info(?)");
    columns.bind(table.name);
    while (columns.row()) {
      table.columns.push_back(columns.bytes(0));
      if (columns.integer(1) != 0) table.key.push_back(columns.bytes(0));
    }
  }
  return tables;
}

// The columns that the damaged file has, too: it may be of an earlier version.
void keep_known(Table& table, sqlite3* from) {
  std::vector<std::string> known;
  for (const auto& column : table.columns) {
    if (Statement(from, ("SELECT " + column + " FROM " + table.name + " LIMIT 0").c_str()).ok())
      known.push_back(column);
  }
  table.columns = std::move(known);
}

// True when it came to the other end.
bool copy_rows(const Table& table, const char* direction, sqlite3* from, sqlite3* to, int64_t& copied) {
  const std::string select =
      "SELECT " + list(table.columns) + " FROM " + table.name + " ORDER BY " + list(table.key, direction);
  std::string marks = "?";
  for (size_t i = 1; i < table.columns.size(); ++i) marks += ",?";
  const std::string insert =
      "INSERT OR IGNORE INTO " + table.name + " (" + list(table.columns) + ") VALUES (" + marks + ")";
  Statement rows(from, select.c_str());
  while (rows.row()) {
    Statement put(to, insert.c_str());
    for (size_t i = 0; i < table.columns.size(); ++i) put.bind(rows.value(static_cast<int>(i)));
    if (put.run()) copied += sqlite3_changes(to);
  }
  return rows.ok();
}

}  // namespace

fs::path name_aside(const fs::path& file) {
  std::array<char, 32> when{};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  strftime(when.data(), when.size(), ".damaged-%Y%m%d-%H%M%S", &utc);
  const std::string name = file.string() + when.data();
  std::error_code ignored;
  for (int n = 1;; ++n) {
    fs::path free = n == 1 ? name : name + "-" + std::to_string(n);
    if (!fs::exists(free, ignored) && !fs::exists(log_of(free), ignored)) return free;
  }
}

Result<fs::path> move_aside(const fs::path& file) {
  fs::path aside = name_aside(file);
  std::error_code error, no_log;
  fs::rename(log_of(file), log_of(aside), no_log);  // first: a new file must not find it
  fs::rename(file, aside, error);
  if (error) {
    return errno_error("cannot move the damaged " + file.string() + " aside", error.value(),
                       "move it away to start with an empty state");
  }
  return aside;
}

std::map<std::string, int64_t> copy_readable(const fs::path& damaged, sqlite3* fresh) {
  std::map<std::string, int64_t> counts;
  // Of a copy: reading writes, since it carries the log over.
  const fs::path copy = damaged.string() + ".read";
  std::error_code error, no_log;
  fs::copy_file(damaged, copy, fs::copy_options::overwrite_existing, error);
  fs::copy_file(log_of(damaged), log_of(copy), fs::copy_options::overwrite_existing, no_log);
  sqlite3* from = nullptr;
  if (!error &&
      sqlite3_open_v2(copy.c_str(), &from, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr) == SQLITE_OK) {
    sqlite3_exec(from, "PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF; PRAGMA locking_mode = EXCLUSIVE",
                 nullptr, nullptr, nullptr);
    Transaction transaction(fresh);
    for (Table& table : tables_of(fresh)) {
      keep_known(table, from);
      if (table.columns.empty()) continue;
      int64_t copied = 0;
      if (!copy_rows(table, " ASC", from, fresh, copied)) copy_rows(table, " DESC", from, fresh, copied);
      if (copied > 0) counts[table.name] = copied;
    }
    if (!transaction.commit()) counts.clear();
  }
  sqlite3_close(from);
  for (const fs::path& file : {copy, log_of(copy)}) fs::remove(file, no_log);
  return counts;
}

}  // namespace freeride::manager
