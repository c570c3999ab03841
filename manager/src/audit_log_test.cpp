// The audit log: whole lines, a mode of its own, rotation by rename and by truncation, no waiting.
#include "audit_log.hpp"

#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

AuditEntry entry_of(const std::string& task) {
  AuditEntry entry;
  entry.unix_ms = 1'700'000'000'123;
  entry.by.local = true;
  entry.by.role = policy::Role::kOperator;
  entry.by.account = "root";
  entry.by.pid = 4711;
  entry.command = "stop";
  entry.arguments = R"({"task":")" + task + R"("})";
  return entry;
}

}  // namespace

TEST_CASE("the audit log has a line for each change, for the owner and the group to read") {
  TempDir dir;
  const auto file = dir.path / "audit.jsonl";
  {
    auto log = AuditLog::open(file, std::nullopt);
    REQUIRE(log.ok());
    (*log)->note(entry_of("a"));
    AuditEntry refused = entry_of("b");
    refused.outcome = "not_found";
    refused.message = "there is no task \xff";
    (*log)->note(refused);
  }
  struct stat info {};
  REQUIRE(stat(file.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0640);
  const auto lines = lines_of(file);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["time"] == "2023-11-14T22:13:20.123Z");
  CHECK(lines[0]["uid"] == 0);
  CHECK(lines[0]["user"] == "root");
  CHECK(lines[0]["pid"] == 4711);
  CHECK(lines[0]["command"] == "stop");
  CHECK(lines[0]["arguments"]["task"] == "a");
  CHECK(lines[0]["outcome"] == "ok");
  CHECK(lines[1]["outcome"] == "not_found");
}

TEST_CASE("the audit log may be renamed or truncated under the manager") {
  TempDir dir;
  const auto file = dir.path / "audit.jsonl", old = dir.path / "audit.jsonl.1";
  {
    auto log = AuditLog::open(file, std::nullopt);
    REQUIRE(log.ok());
    std::filesystem::rename(file, old);
    (*log)->note(entry_of("after the rename"));
  }
  CHECK(lines_of(old).empty());
  REQUIRE(lines_of(file).size() == 1);
  {
    auto log = AuditLog::open(file, std::nullopt);
    REQUIRE(log.ok());
    std::filesystem::resize_file(file, 0);
    (*log)->note(entry_of("after the truncation"));
  }
  REQUIRE(lines_of(file).size() == 1);  // and no hole before it
  CHECK(lines_of(file)[0]["arguments"]["task"] == "after the truncation");
}

TEST_CASE("an audit log that cannot be written is told at the start, later only counted") {
  TempDir dir;
  CHECK_FALSE(AuditLog::open(dir.path / "none" / "audit.jsonl", std::nullopt).ok());
  REQUIRE(mkfifo((dir.path / "fifo").c_str(), 0600) == 0);
  CHECK_FALSE(AuditLog::open(dir.path / "fifo", std::nullopt).ok());  // nobody reads it: that would wait
  std::filesystem::create_directory(dir.path / "moved");
  const auto file = dir.path / "moved" / "audit.jsonl";
  auto log = AuditLog::open(file, std::nullopt);
  REQUIRE(log.ok());
  std::filesystem::rename(dir.path / "moved", dir.path / "away");
  for (int n = 0; n < 3; ++n) (*log)->note(entry_of("lost"));
  log->reset();  // what waits is tried
  CHECK(lines_of(dir.path / "away" / "audit.jsonl").empty());
}
