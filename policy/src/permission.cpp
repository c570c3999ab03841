#include "freeride/policy/permission.hpp"

#include <array>
#include <utility>

namespace freeride::policy {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kVerbs = {{
    {"load.plan", "load --dry-run"},
    {"replace", "load --replace"},
    {"remove", "rm"},
    {"task.log", "logs"},
    {"task.file", "cp"},
    {"plugin.read", "load"},
    {"batch.submit", "batch"},
    {"batch", "batch attach"},
    {"batches", "batch ls"},
    {"batch.remove", "batch rm"},
    {"usage", "report --since"},
    {"profile.take", "profile"},
    {"profile.follow", "profile"},
    {"profile.stop", "profile"},
    {"profile.list", "profile list"},
}};

std::string name_of(const Identity& who) {
  const std::string role = std::string("role ") + to_string(who.role);
  if (!who.key.empty()) return "the key " + who.key + " (" + role + ")";
  return who.account + " (" + role + ")";
}

// As its node says, whose key names that host.
bool is_root_of_a_node(const Identity& who) {
  return who.role == Role::kUser && !who.host.empty() && who.uid == 0;
}

}  // namespace

const char* to_string(Role role) {
  switch (role) {
    case Role::kNobody:
      return "nobody";
    case Role::kMonitor:
      return "monitor";
    case Role::kUser:
      return "user";
    case Role::kNode:
      return "node";
    case Role::kOperator:
      return "operator";
  }
  return "nobody";
}

std::optional<Role> role_of_key(std::string_view name) {
  for (const Role role : {Role::kMonitor, Role::kUser, Role::kNode, Role::kOperator}) {
    if (name == to_string(role)) return role;
  }
  return std::nullopt;
}

std::string_view verb_of(std::string_view command) {
  for (const auto& [wire, verb] : kVerbs) {
    if (wire == command) return verb;
  }
  return command;
}

Status permit(const Identity& who, Right right, std::string_view what, const std::optional<std::string>& owner) {
  const std::string command = "'" + std::string(verb_of(what)) + "'";
  const auto no = [](std::string message, std::string hint) {
    return Error{Code::kPermission, std::move(message), std::move(hint)};
  };
  if (who.role == Role::kNobody) {
    return no("this manager does not know " + (who.key.empty() ? std::string("who you are") : "the key " + who.key),
              "ask its operator for a key (freeride-ctl keys make), and name it with --key");
  }
  if (right == Right::kServe) {
    if ((who.local && who.role == Role::kOperator) || who.role == Role::kNode) return {};
    return no("this manager takes " + command + " from workers of root and its own user, and from nodes only",
              "run the worker as one of these, elsewhere under freeride-node");
  }
  if (who.role == Role::kMonitor)
    return no(name_of(who) + " hears events and may not command " + command, "use a key of role user or operator");
  if (who.role == Role::kNode && right == Right::kRead) return {};
  if (who.role == Role::kNode)
    return no(name_of(who) + " may not command " + command + " for itself", "it has to say for which user it speaks");
  if (right == Right::kLift && who.role != Role::kOperator) {
    return no("a block for GPU faults is lifted by root or the manager's own user only, or with an operator's key",
              "ask an operator");
  }
  if (right == Right::kFiles && who.role != Role::kOperator && owner && *owner != who.account) {
    return no(name_of(who) + " may not command " + command + ": task and files are " +
                  (owner->empty() ? "nobody's" : *owner + "'s"),
              "only their owner and operators may");
  }
  // The manager's host trusts the group that it lets in with the whole queue.
  if (who.role != Role::kUser || who.local) return {};
  if (right == Right::kDrain && !is_root_of_a_node(who))
    return no(name_of(who) + " may not command " + command + ": devices are everybody's", "ask an operator");
  if ((right == Right::kSteer || right == Right::kRead) && owner && *owner != who.account) {
    return no(name_of(who) + " may not command " + command + ": the task is " + (owner->empty() ? "nobody's" : *owner) +
                  (owner->empty() ? "" : "'s"),
              "only its owner and operators may");
  }
  return {};
}

Status permit_worker(const Identity& who, std::string_view worker) {
  if (who.role != Role::kNode || worker.substr(0, who.host.size() + 1) == who.host + ":") return {};
  return Error{Code::kPermission,
               name_of(who) + " is the node of " + who.host + ", so it may not speak for the worker " +
                   std::string(worker.substr(0, 128)),
               "make a key for that host (freeride-ctl keys make NAME --role node --host HOST)"};
}

std::string_view host_of_worker(std::string_view worker) {
  const size_t colon = worker.find(':');
  return worker.substr(0, colon == std::string_view::npos ? 0 : colon);
}

Status permit_drain(const Identity& who, std::string_view subject) {
  if (!is_root_of_a_node(who) || subject == "host:" + who.host) return {};
  return Error{Code::kPermission,
               name_of(who) + " may drain its own host only, and not " + std::string(subject.substr(0, 128)),
               "name it as host:" + who.host + ", or ask an operator"};
}

Status permit_account(const Identity& who, std::string_view account, const AccountFacts& facts) {
  if (who.role == Role::kOperator || facts.listed || (who.local && facts.in_group)) return {};
  const std::string name(account.substr(0, 128));
  return Error{Code::kPermission,
               name_of(who) + " may not charge the account " + name + ": no operator has listed " + who.account +
                   " for it" + (who.local ? ", and no group " + name + " of this host has that member" : ""),
               "leave --account out (and unset SLURM_JOB_ACCOUNT), or ask an operator for " + name + " = [\"" +
                   who.account + "\"] below [accounts] in freeride.toml"};
}

}  // namespace freeride::policy
