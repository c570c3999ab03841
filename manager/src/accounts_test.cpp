// To which account a task is charged, and the queue that is fair between accounts.
#include "accounts.hpp"

#include <algorithm>

#include "test_support.hpp"

namespace freeride::manager {
namespace {

using policy::Identity;
using policy::Role;

Identity local_user(const std::string& name) {
  Identity who;
  who.role = Role::kUser;
  who.local = true;
  who.uid = 1000;
  who.account = name;
  return who;
}

Identity user_of_host(const std::string& name, const std::string& host) {
  Identity who = local_user(name + "@" + host);
  who.role = Role::kUser;
  who.local = false;
  who.key = host + "-node";
  who.host = host;
  return who;
}

bus::Load load_by(const Identity& who, const std::string& account) {
  bus::Load load;
  load.user = who.account;
  load.account = account;
  return load;
}

const Accounts kAccounts({{"vision", {"alice", "carol@gpu7"}}, {"text", {}}});

Status charge(const Identity& who, bus::Load& load, const std::string& group = {}) {
  return kAccounts.charge(load, who, [&](const std::string& asked) { return asked == group; });
}

TEST_CASE("accounts: what nobody names is charged to its user", "[accounts]") {
  auto load = load_by(local_user("bob"), "");
  REQUIRE(charge(local_user("bob"), load).ok());
  CHECK(load.account == "bob");
  CHECK(account_of(load) == "bob");
  // As an earlier version has saved it.
  CHECK(account_of(load_by(local_user("bob"), "")) == "bob");
}

TEST_CASE("accounts: an account is whose the operator has listed, or a group's of this host", "[accounts]") {
  const auto may = [](const Identity& who, const std::string& account, const std::string& group = {}) {
    auto load = load_by(who, account);
    const Status charged = charge(who, load, group);
    if (charged.ok()) CHECK(load.account == account);
    if (!charged.ok()) CHECK(charged.error().code == Code::kPermission);
    return charged.ok();
  };
  CHECK(may(local_user("alice"), "vision"));
  CHECK(may(user_of_host("carol", "gpu7"), "vision"));
  CHECK(may(local_user("bob"), "audio", "audio"));
  CHECK_FALSE(may(local_user("bob"), "vision"));
  CHECK_FALSE(may(local_user("alice"), "text"));
  CHECK_FALSE(may(local_user("bob"), "alice"));
  CHECK_FALSE(may(local_user("bob"), "audio", "video"));
  // Another host's users: neither the name nor the number is this host's, whatever groups there are here.
  CHECK_FALSE(may(user_of_host("alice", "gpu7"), "vision"));
  CHECK_FALSE(may(user_of_host("carol", "gpu8"), "vision"));
  CHECK_FALSE(may(user_of_host("bob", "gpu7"), "audio", "audio"));
  Identity root = local_user("root");
  root.role = Role::kOperator;
  CHECK(may(root, "vision"));
}

TEST_CASE("accounts: who is refused is told why, and what to do", "[accounts]") {
  auto load = load_by(local_user("bob"), "vision");
  const Status refused = charge(local_user("bob"), load);
  REQUIRE_FALSE(refused.ok());
  CHECK(contains(refused.error().message, "bob (role user) may not charge the account vision"));
  CHECK(contains(refused.error().hint, "vision = [\"bob\"] below [accounts] in freeride.toml"));
  auto odd = load_by(local_user("bob"), "a\nb");
  CHECK(charge(local_user("bob"), odd).error().code == Code::kInvalidArgument);
}

// Orders that nobody has answered are sent again.
void note_created(House& house, std::vector<std::string>& order) {
  for (auto& [sent, create] : house.out.take<bus::CreateTask>()) {
    if (std::find(order.begin(), order.end(), create.task) == order.end()) order.push_back(create.task);
  }
}

bus::Load charged_to(const std::string& name, const std::string& account, const std::string& user = "ann") {
  auto load = load_of(name, 0);
  load.user = user;
  load.account = account;
  load.no_profile = true;
  return load;
}

TEST_CASE("accounts: the queue goes by what each has had, also after a restart, and by submission without",
          "[accounts]") {
  for (const int64_t half_life_ns : {24 * 3600 * kNsPerSec, int64_t{0}}) {
    House house([&](CoreConfig& config) { config.account_half_life_ns = half_life_ns; });
    FakeWorker worker("w", 0);
    house.join(worker);
    REQUIRE(house.load(charged_to("first", "vision")).ok());
    house.settle(worker);
    auto& report = worker.tasks.at("first");
    report.state = "RUNNING";
    report.counters.steps = 10;
    report.counters.step_ns = report.counters.harvested_ns = 1000 * kNsPerSec;
    house.report(worker);
    worker.stage = -1;  // the training has ended: what is loaded now waits
    house.report(worker);
    for (const auto& [name, account] : {std::pair("v1", "vision"), {"v2", "vision"}, {"t1", "text"}, {"t2", "text"}})
      REQUIRE(house.load(charged_to(name, account)).ok());
    house.restart();
    house.pass(3);
    worker.stage = 0;
    house.join(worker);
    house.pass(3, {});
    std::vector<std::string> order;
    note_created(house, order);
    for (int n = 0; n < 20 && order.size() < 4; ++n) {
      house.clock.tick(kNsPerSec);
      house.report(worker);
      house.core->tick();
      note_created(house, order);
    }
    CHECK(order == (half_life_ns > 0 ? std::vector<std::string>{"t1", "t2", "v1", "v2"}
                                     : std::vector<std::string>{"v1", "v2", "t1", "t2"}));
  }
}

}  // namespace
}  // namespace freeride::manager
