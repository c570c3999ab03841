// Thin owners around SQLite's C handles.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace freeride::manager {

/// A prepared statement, finalised at the end of its scope. ok() is false once anything failed; the database handle
/// then holds the reason. Bind in order, then step. One thread.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { ok_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr) == SQLITE_OK; }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(int64_t value) { return check(sqlite3_bind_int64(statement_, ++bound_, value)); }
  Statement& bind(uint64_t value) { return bind(static_cast<int64_t>(value)); }
  Statement& bind(bool value) { return bind(static_cast<int64_t>(value)); }
  Statement& bind(double value) { return check(sqlite3_bind_double(statement_, ++bound_, value)); }
  Statement& bind(std::string_view text) {
    return check(sqlite3_bind_text64(statement_, ++bound_, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  }
  Statement& bind(const std::string& text) { return bind(std::string_view(text)); }
  Statement& bind_blob(std::string_view bytes) {
    return check(sqlite3_bind_blob64(statement_, ++bound_, bytes.data(), bytes.size(), SQLITE_TRANSIENT));
  }

  Statement& bind(sqlite3_value* value) { return check(sqlite3_bind_value(statement_, ++bound_, value)); }

  /// True while there is a row.
  bool row() {
    if (!ok_) return false;
    const int rc = sqlite3_step(statement_);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) ok_ = false;
    return rc == SQLITE_ROW;
  }
  /// Runs a statement that gives no rows.
  bool run() {
    while (row()) {
    }
    return ok_;
  }
  bool ok() const { return ok_; }

  /// To be bound and run once more.
  Statement& again() {
    sqlite3_reset(statement_);
    bound_ = 0;
    return *this;
  }

  int64_t integer(int column) { return sqlite3_column_int64(statement_, column); }
  uint64_t unsigned_integer(int column) { return static_cast<uint64_t>(integer(column)); }
  bool null(int column) { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  double real(int column) { return sqlite3_column_double(statement_, column); }
  /// Until the next row; for bind() alone.
  sqlite3_value* value(int column) { return sqlite3_column_value(statement_, column); }
  std::string bytes(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
  }

 private:
  Statement& check(int rc) {
    if (rc != SQLITE_OK) ok_ = false;
    return *this;
  }
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
  bool ok_ = false;
};

/// A transaction that rolls back unless committed. Within another one it is part of that, which decides.
class Transaction {
 public:
  explicit Transaction(sqlite3* db) : db_(db), within_(sqlite3_get_autocommit(db) == 0) {
    if (!within_) open_ = run("BEGIN IMMEDIATE");
  }
  ~Transaction() {
    if (open_) run("ROLLBACK");
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  bool ok() const { return within_ || open_; }
  bool commit() {
    if (within_) return true;
    if (!open_ || !run("COMMIT")) return false;
    open_ = false;
    return true;
  }

 private:
  bool run(const char* sql) { return sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK; }
  sqlite3* db_;
  bool within_, open_ = false;
};

}  // namespace freeride::manager
