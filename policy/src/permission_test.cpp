#include "freeride/policy/permission.hpp"

#include <catch2/catch.hpp>
#include <set>

using namespace freeride;
using namespace freeride::policy;

namespace {

constexpr Role kRoles[] = {Role::kNobody, Role::kMonitor, Role::kUser, Role::kNode, Role::kOperator};
constexpr Right kRights[] = {Right::kLook, Right::kSubmit, Right::kSteer, Right::kLift, Right::kServe, Right::kRead};

Identity identity(Role role, bool local) {
  Identity who;
  who.role = role;
  who.local = local;
  who.account = "alice";
  if (!local) who.key = "alice-laptop";
  return who;
}

}  // namespace

TEST_CASE("permission: every role's rights, over sockets and over the network", "[permission]") {
  const std::set<std::pair<Role, Right>> everywhere = {
      {Role::kUser, Right::kLook},     {Role::kUser, Right::kSubmit},     {Role::kUser, Right::kSteer},
      {Role::kOperator, Right::kLook}, {Role::kOperator, Right::kSubmit}, {Role::kOperator, Right::kSteer},
      {Role::kOperator, Right::kLift}, {Role::kUser, Right::kRead},       {Role::kOperator, Right::kRead},
      {Role::kNode, Right::kRead},
  };
  for (const bool local : {true, false}) {
    for (const Role role : kRoles) {
      for (const Right right : kRights) {
        const bool expected = right == Right::kServe ? (local && role == Role::kOperator) || role == Role::kNode
                                                     : everywhere.count({role, right}) != 0;
        INFO(to_string(role) << " " << static_cast<int>(right) << (local ? " local" : " by key"));
        const auto may = permit(identity(role, local), right, "x", "alice");
        CHECK(may.ok() == expected);
        if (!may.ok()) CHECK(may.error().code == Code::kPermission);
      }
    }
  }
  CHECK_FALSE(permit({}, Right::kLook, "x").ok());  // what was never filled in is nobody
}

TEST_CASE("permission: a refusal names what people type, not the command of the wire", "[permission]") {
  const auto message = [](Right right, const char* command, const char* owner) {
    return permit(identity(Role::kUser, false), right, command, owner).error().message;
  };
  CHECK(message(Right::kRead, "task.log", "bob").find("may not command 'logs'") != std::string::npos);
  CHECK(message(Right::kSteer, "remove", "bob").find("may not command 'rm'") != std::string::npos);
  CHECK(message(Right::kSteer, "batch.remove", "bob").find("may not command 'batch rm'") != std::string::npos);
  CHECK(verb_of("stop") == "stop");
}

TEST_CASE("permission: a user steers its own tasks; on the manager's host, as an operator, everybody's",
          "[permission]") {
  for (const auto& [role, local] : {std::pair(Role::kUser, false), {Role::kUser, true}, {Role::kOperator, false}}) {
    const auto who = identity(role, local);
    const bool all = local || role == Role::kOperator;
    CHECK(permit(who, Right::kSteer, "stop", "alice").ok());
    CHECK(permit(who, Right::kSteer, "stop", "bob").ok() == all);
    CHECK(permit(who, Right::kSteer, "stop", "").ok() == all);
    CHECK(permit(who, Right::kSteer, "stop").ok());  // there is no such task: the answer says so
  }
}

TEST_CASE("permission: root of a node's host drains that host, and nothing else", "[permission]") {
  Identity root = identity(Role::kUser, false), user, laptop;
  root.host = "gpu7", root.account = "root@gpu7";
  user = root, user.uid = 1000, user.account = "alice@gpu7";
  laptop = root, laptop.host.clear();  // a user's own key names no host
  CHECK(permit(root, Right::kDrain, "drain").ok());
  CHECK(permit_drain(root, "host:gpu7").ok());
  for (const char* other : {"all", "all:all", "gpu7", "host:gpu8", "host:gpu77", "device:gpu7:cpu-0", "job:gpt", ""}) {
    INFO(other);
    const auto may = permit_drain(root, other);
    REQUIRE_FALSE(may.ok());
    CHECK(may.error().code == Code::kPermission);
  }
  CHECK_FALSE(permit(user, Right::kDrain, "drain").ok());
  CHECK_FALSE(permit(laptop, Right::kDrain, "drain").ok());
  CHECK(permit_drain(identity(Role::kOperator, true), "job:gpt").ok());
  CHECK_FALSE(permit(root, Right::kSteer, "stop", "bob").ok());
}

TEST_CASE("permission: a node serves with the workers of its own host", "[permission]") {
  Identity node = identity(Role::kNode, false);
  node.host = "gpu7";
  CHECK(host_of_worker("gpu7:GPU-1") == "gpu7");
  CHECK(host_of_worker("").empty());
  CHECK(permit_worker(node, "gpu7:cpu-0").ok());
  for (const char* other : {"gpu70:cpu-0", "gpu8:cpu-0", "gpu7", "gpu7-1a2b3c4d:cpu-0", ":cpu-0", ""}) {
    INFO(other);
    const auto may = permit_worker(node, other);
    REQUIRE_FALSE(may.ok());
    CHECK(may.error().code == Code::kPermission);
  }
  CHECK(permit_worker(identity(Role::kOperator, true), "gpu7:cpu-0").ok());
}

TEST_CASE("permission: an account is charged by whom the operator lists, or by a member of this host's group",
          "[permission]") {
  Identity other_host = identity(Role::kUser, false);
  other_host.host = "gpu7";
  for (const bool listed : {false, true}) {
    for (const bool in_group : {false, true}) {
      const AccountFacts facts{listed, in_group};
      CHECK(permit_account(identity(Role::kUser, true), "vision", facts).ok() == (listed || in_group));
      CHECK(permit_account(other_host, "vision", facts).ok() == listed);
      CHECK(permit_account(identity(Role::kUser, false), "vision", facts).ok() == listed);
      CHECK(permit_account(identity(Role::kOperator, true), "vision", facts).ok());
    }
  }
  const auto refused = permit_account(identity(Role::kUser, true), std::string(1000, 'x'), {});
  CHECK(refused.error().code == Code::kPermission);
  CHECK(refused.error().text().size() < 700);
}

TEST_CASE("permission: keys have four roles", "[permission]") {
  CHECK(role_of_key("monitor") == Role::kMonitor);
  CHECK(role_of_key("user") == Role::kUser);
  CHECK(role_of_key("node") == Role::kNode);
  CHECK(role_of_key("operator") == Role::kOperator);
  for (const char* none : {"", "submitter", "nobody", "Operator", "root"}) CHECK_FALSE(role_of_key(none));
}
