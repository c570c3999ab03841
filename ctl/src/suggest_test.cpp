#include "suggest.hpp"

#include <catch2/catch.hpp>

using namespace freeride::ctl;  // NOLINT(google-build-using-namespace)

TEST_CASE("what was nearly typed is suggested, and nothing far-fetched") {
  const std::vector<std::string> verbs{"load", "tasks", "task", "top", "status", "stop"};
  CHECK(nearest("taks", verbs) == "tasks");  // not the verb that is a letter further
  CHECK(nearest("statsu", verbs) == "status");
  CHECK(nearest("lod", verbs) == "load");
  CHECK(nearest("stat", verbs) == "status");  // the only one that begins so
  CHECK(nearest("", verbs).empty());
  CHECK(nearest("tasks", verbs).empty());
  CHECK(nearest("frobnicate", verbs).empty());
  CHECK(nearest(std::string(100'000, 'x'), {std::string(100'000, 'y')}).empty());
  CHECK(did_you_mean("taks", verbs) == "did you mean 'tasks'? ");
  CHECK(did_you_mean("zzz", verbs).empty());
}
