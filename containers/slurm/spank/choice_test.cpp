#include "choice.hpp"

#include <catch2/catch.hpp>

using namespace freeride::slurm;

TEST_CASE("slurm: what --freeride takes", "[slurm]") {
  CHECK(parse_choice("") == true);
  CHECK(parse_choice("on") == true);
  CHECK(parse_choice("(null)") == true);
  CHECK(parse_choice("off") == false);
  for (const char* no : {"yes", "On", "0", "on ", "0.3"}) CHECK(parse_choice(no) == std::nullopt);
}

TEST_CASE("slurm: what --freeride-budget takes", "[slurm]") {
  for (const char* yes : {"0", "0.3", "1", "100", "99.99"}) CHECK(parse_budget(yes) == yes);
  for (const char* no : {"", "0.3%", "0,3", "-0.1", "100.1", "nan", "inf", "1e1", " 1", "1 ", "(null)", "on"})
    CHECK(parse_budget(no) == std::nullopt);
}

TEST_CASE("slurm: jobs and tasks of arrays are told apart", "[slurm]") {
  CHECK(job_name(7, 0, 0) == "slurm-7");
  CHECK(job_name(7, 7, 0xfffffffe) == "slurm-7");
  CHECK(job_name(9, 7, 2) == "slurm-7_2");
  CHECK(job_name(7, 7, 0) == "slurm-7_0");
}

TEST_CASE("slurm: a folder comes to a path once, and never the working folder", "[slurm]") {
  CHECK(in_front("/a", "") == "/a");
  CHECK(in_front("/a", "/b:/c") == "/a:/b:/c");
  CHECK(in_front("/a", "/b:/a") == "/b:/a");
  CHECK(in_front("/a", "/a/b") == "/a:/a/b");
}

TEST_CASE("slurm: words of plugstack.conf", "[slurm]") {
  Settings settings;
  CHECK(take(settings, "run_dir=/r"));
  CHECK(take(settings, "library=/x=y"));
  CHECK(settings.run_dir == "/r");
  CHECK(settings.library == "/x=y");
  CHECK_FALSE(take(settings, "rundir=/r"));
  CHECK_FALSE(take(settings, "run_dir"));
}
