// Names: one rule for everybody who takes one.
#include "freeride/base/names.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace freeride;

// Manager and worker both ask is_task_name(); the manager's answer to ".x" is in core_test, too.
TEST_CASE("a name that the manager accepts is one that the worker accepts") {
  for (const std::string& good : {std::string("a"), std::string("resnet-2"), std::string("A_b.c"), std::string("x."),
                                  std::string(kMaxTaskName, 'x')}) {
    CHECK(is_task_name(good));
  }
  for (const std::string& bad : {std::string(), std::string(".x"), std::string("."), std::string(".."),
                                 std::string("a b"), std::string("a/b"), std::string("../up"), std::string("\xc3\xa4"),
                                 std::string("a\0b", 3), std::string("a\n"), std::string(kMaxTaskName + 1, 'x')}) {
    CHECK_FALSE(is_task_name(bad));
  }
}

TEST_CASE("a plain name is short and moves no cursor") {
  CHECK(
      is_plain("gpt 2, T\xc3\xbc"
               "bingen"));
  CHECK(is_plain(std::string(kMaxPlainName, 'x')));
  CHECK_FALSE(is_plain(std::string(kMaxPlainName + 1, 'x')));
  CHECK(is_plain(std::string(kMaxFileName, 'x'), kMaxFileName));
  for (const std::string& bad :
       {std::string(), std::string("a\nb"), std::string("\x1b[2J"), std::string("\x7f"), std::string(1, '\0')}) {
    CHECK_FALSE(is_plain(bad));
  }
}

TEST_CASE("a plugin's own name is in small letters") {
  CHECK(is_plugin_name("graph_bfs-2"));
  for (const char* bad : {"", "Graph", "a.b", "a b", "a/b"}) CHECK_FALSE(is_plugin_name(bad));
}

TEST_CASE("a job is its user and its name; a name alone means it, whosever it is") {
  CHECK(job_of(1000, "gpt") == "1000/gpt");
  CHECK(means_job("gpt", "gpt"));
  CHECK(means_job("gpt", "1000/gpt"));
  CHECK(means_job("1000/gpt", "1000/gpt"));
  CHECK(means_job("a/b", "1000/a/b"));
  CHECK_FALSE(means_job("1001/gpt", "1000/gpt"));
  CHECK_FALSE(means_job("1000/gpt", "gpt"));
  CHECK_FALSE(means_job("pt", "1000/gpt"));
  // Nobody gets to another's by what the job is called.
  CHECK(owner_size(job_of(1000, "1001/gpt")) == 5);
  CHECK_FALSE(means_job("1001/other", job_of(1000, "1001/gpt")));
  for (const char* none : {"", "gpt", "/gpt", "12", "a1/gpt", "-1/gpt"}) CHECK(owner_size(none) == 0);
}
