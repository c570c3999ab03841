#include "freeride/pages/names.hpp"

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "freeride/pages.h"

using namespace freeride::pages;

TEST_CASE("names: every transition has one of its own, and loading is \"load\" everywhere") {
  std::set<std::string> names;
  for (uint32_t transition = FREERIDE_IN_NONE; transition <= FREERIDE_IN_RESTORE; ++transition) {
    INFO(transition);
    const std::string name = transition_name(transition);
    CHECK(name.empty() == (transition == FREERIDE_IN_NONE));
    CHECK(names.insert(name).second);
    CHECK(transition_of(name) == transition);
  }
  CHECK(transition_name(FREERIDE_IN_LOAD) == std::string("load"));
  CHECK_FALSE(transition_of("loading"));
}

TEST_CASE("names: every state has the paper's") {
  const char* const names[] = {"SUBMITTED", "CREATED", "PAUSED", "RUNNING", "STOPPED"};
  for (uint32_t state = FREERIDE_STATE_SUBMITTED; state <= FREERIDE_STATE_STOPPED; ++state)
    CHECK(state_name(state) == std::string(names[state]));
}

TEST_CASE("names: a number from a page that lies has none") {
  CHECK(*state_name(FREERIDE_STATE_STOPPED + 1) == '\0');
  CHECK(*state_name(UINT32_MAX) == '\0');
  CHECK(*transition_name(FREERIDE_IN_RESTORE + 1) == '\0');
  CHECK(*transition_name(UINT32_MAX) == '\0');
}
