#include "jobs.hpp"

#include <catch2/catch.hpp>

namespace freeride::ctl {

TEST_CASE("a job is shown with its user's name, and what is shown is understood") {
  CHECK(shown_job("0/gpt") == "root/gpt");
  CHECK(job_argument("root/gpt") == "0/gpt");
  CHECK(job_argument(shown_job("0/a/b")) == "0/a/b");
  // One user's, as ever; a number without a user; a name that only looks like one with a user.
  for (const char* job : {"gpt", "", "4294967294/gpt", "99999999999999/gpt", "no such user/gpt", "/gpt", "12"}) {
    CAPTURE(job);
    CHECK(shown_job(job) == job);
    CHECK(job_argument(job) == job);
  }
}

}  // namespace freeride::ctl
