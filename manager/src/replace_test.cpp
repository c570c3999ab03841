// Replacing a task's plugin, as the core sees it.
#include "core.hpp"
#include "freeride/base/sha256.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {

// Another content that is a plugin too.
std::string other_bytes(int number = 1) {
  return plugin_bytes() + std::to_string(number);
}

bus::Load next_load(std::map<std::string, std::string> params = {}) {
  bus::Load load;
  load.plugin = "next.so";
  load.params = std::move(params);
  return load;
}

/// A task "a" that runs on one worker.
struct Replacing : House {
  FakeWorker worker{"w", 0};
  explicit Replacing(bool placed = true) {
    join(worker);
    auto asked = load_of("a", 0);
    asked.params["size"] = "1";
    asked.priority = 3;
    if (!placed) return;
    REQUIRE(load(asked).ok());
    settle(worker);
    worker.tasks["a"].state = "RUNNING";
    worker.tasks["a"].counters.steps = 10;
    report(worker);
    REQUIRE(House::state("a") == "RUNNING");
    out.sent.clear();
  }
  /// The ticket, which may be answered later.
  Ticket replace(const std::string& name, const bus::Load& load, const std::string& bytes = other_bytes(),
                 const std::string& id = {}) {
    const Ticket ticket = ++tickets;
    core->replace(ticket, id.empty() ? "replace-" + std::to_string(ticket) : id, name, load, bytes);
    return ticket;
  }
  bool answered(Ticket ticket) const { return out.answers.count(ticket) != 0; }
  bus::ReplaceTask ordered() {
    auto orders = out.take<bus::ReplaceTask>();
    REQUIRE(orders.size() == 1);
    acknowledge(orders[0].first);
    return orders[0].second;
  }
  /// What the worker says of replacement `revision` from now on.
  void say(uint64_t revision, const std::string& state, const std::string& reason = {}) {
    auto& task = worker.tasks["a"];
    task.replacement = {revision, state, reason, task.counters.steps};
    if (state == "done") task.revision = revision;
    House::report(worker);
  }
  bool stored(const std::string& bytes) const {
    return std::filesystem::exists(config.paths.store_dir() / (sha256_hex(bytes) + ".so"));
  }
};

}  // namespace

TEST_CASE("a task is moved to another plugin and keeps what it is") {
  Replacing house;
  const Ticket ticket = house.replace("a", next_load());
  CHECK_FALSE(house.answered(ticket));
  CHECK(house.task("a").replacement.state == "pending");
  const auto order = house.ordered();
  CHECK(order.create.task == "a");
  CHECK(order.create.revision == 1);
  CHECK(order.create.sha256 == sha256_hex(other_bytes()));
  CHECK(order.create.plugin == "next.so");
  CHECK(order.create.params == std::map<std::string, std::string>{{"size", "1"}});
  CHECK(order.create.priority == 3);
  CHECK_FALSE(order.create.instance.empty());
  house.say(1, "creating");
  house.say(1, "starting");
  CHECK_FALSE(house.answered(ticket));
  CHECK(house.task("a").state.sha256 == sha256_hex(plugin_bytes()));
  house.worker.tasks["a"].counters.steps = 12;
  house.say(1, "done", "it continues from its state of 4 bytes");
  REQUIRE(house.answered(ticket));
  const auto info = *house.task_of(ticket);
  CHECK(info.state.task == "a");
  CHECK(info.state.plugin == "next.so");
  CHECK(info.state.sha256 == sha256_hex(other_bytes()));
  CHECK(info.state.counters.steps == 12);
  CHECK(info.load.stage == 0);
  CHECK(info.revision == 1);
  CHECK(info.replacement.state == "done");
  CHECK(info.replacement.reason == "it continues from its state of 4 bytes");
  REQUIRE(info.incarnations.size() == 1);
  CHECK(info.incarnations[0].verdict.kind == "replaced");
  CHECK(info.incarnations[0].sha256 == sha256_hex(plugin_bytes()));
  CHECK(info.incarnations[0].steps == 12);
  CHECK(house.tasks().size() == 1);
  // Said again, nothing happens again.
  house.say(1, "done", "it continues from its state of 4 bytes");
  CHECK(house.task("a").incarnations.size() == 1);
}

TEST_CASE("what is given anew counts, and only that") {
  Replacing house;
  auto load = next_load({{"rate", "2"}});
  load.steps = 100;
  load.priority = 7;
  load.memory_bytes = 512LL << 20;
  house.replace("a", load);
  const auto order = house.ordered();
  CHECK(order.create.params == std::map<std::string, std::string>{{"rate", "2"}});
  CHECK(order.create.steps == 100);
  CHECK(order.create.priority == 7);
  CHECK(order.create.memory_limit_bytes == 512LL << 20);
  house.say(1, "done");
  CHECK(house.task("a").load.params == load.params);
  for (const auto& change :
       std::vector<std::function<void(bus::Load&)>>{[](auto& l) { l.stage = 0; }, [](auto& l) { l.name = "b"; },
                                                    [](auto& l) { l.job = "gpt"; }, [](auto& l) { l.replica = 0; }}) {
    auto other = next_load();
    change(other);
    CHECK(house.task_of(house.replace("a", other)).error().code == Code::kInvalidArgument);
  }
  auto huge = next_load();
  huge.memory_bytes = 20LL << 30;
  const auto refused = house.task_of(house.replace("a", huge, other_bytes(2)));
  CHECK(refused.error().code == Code::kRejected);
  CHECK(contains(refused.error().message, "does not fit on w"));
}

TEST_CASE("a plugin that does not work: the user hears why, the task is what it was") {
  Replacing house;
  const Ticket ticket = house.replace("a", next_load());
  house.ordered();
  house.say(1, "failed", "failed in RestoreState: no");
  REQUIRE(house.answered(ticket));
  const auto error = house.task_of(ticket).error();
  CHECK(error.code == Code::kRejected);
  CHECK(contains(error.message, "failed in RestoreState: no"));
  const auto info = house.task("a");
  CHECK(info.state.sha256 == sha256_hex(plugin_bytes()));
  CHECK(info.state.state == "RUNNING");
  CHECK(info.revision == 0);
  CHECK(info.replacement.state == "failed");
  // The next has a number of its own, so that the two are not mistaken for each other.
  house.replace("a", next_load());
  CHECK(house.ordered().create.revision == 2);
  house.say(2, "done");
  CHECK(house.task("a").revision == 2);
}

TEST_CASE("what cannot be replaced") {
  Replacing house;
  CHECK(house.task_of(house.replace("nobody", next_load())).error().code == Code::kNotFound);
  CHECK(house.task_of(house.replace("a", next_load(), "no plugin at all")).error().code == Code::kInvalidArgument);
  CHECK(house.task_of(house.replace("a", next_load(), "")).error().code == Code::kNotFound);
  const Ticket first = house.replace("a", next_load());
  const auto second = house.task_of(house.replace("a", next_load(), other_bytes(2)));
  CHECK(second.error().code == Code::kAlreadyExists);
  house.ordered();
  house.say(1, "done");
  CHECK(house.answered(first));
  REQUIRE(house.stop("a").ok());
  CHECK(house.task_of(house.replace("a", next_load())).error().code == Code::kInvalidArgument);
  house.obey(house.worker);
  CHECK(house.task_of(house.replace("a", next_load())).error().code == Code::kInvalidArgument);
  // One that does not know the command, or has it no more.
  REQUIRE(house.load(load_of("a", 0)).ok());
  house.settle(house.worker);
  const Ticket refused = house.replace("a", next_load());
  auto orders = house.out.take<bus::ReplaceTask>();
  REQUIRE(orders.size() == 1);
  house.acknowledge(orders[0].first, Error{Code::kVersion, "this worker knows no command 'worker.replace'", {}});
  CHECK(house.task_of(refused).error().code == Code::kVersion);
}

TEST_CASE("a task in the queue, with or without a trainer, simply is the new one") {
  Replacing house(false);
  auto asked = load_of("a", 3);
  REQUIRE(house.load(asked).ok());
  const Ticket ticket = house.replace("a", next_load());
  REQUIRE(house.answered(ticket));
  CHECK(house.task_of(ticket)->state.plugin == "next.so");
  CHECK(house.task_of(ticket)->replacement.state == "done");
  house.settle(house.worker);
  CHECK(house.out.take<bus::ReplaceTask>().empty());
  FakeWorker right("x", 3);
  house.join(right);
  for (int n = 0; n < 4; ++n) house.obey(house.worker), house.settle(right);
  INFO(house.reason("a"));
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.task("a").state.sha256 == sha256_hex(other_bytes()));
}

TEST_CASE("a task that is just being created is replaced once its worker has reported it") {
  Replacing house(false);
  REQUIRE(house.load(load_of("a", 0)).ok());
  house.obey(house.worker);  // the profile
  auto creates = house.out.take<bus::CreateTask>();
  REQUIRE(creates.size() == 1);
  const Ticket ticket = house.replace("a", next_load());
  CHECK(house.out.take<bus::ReplaceTask>().empty());
  house.out.sent.push_back(creates[0].first);
  house.obey(house.worker);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.ordered().create.sha256 == sha256_hex(other_bytes()));
  house.say(1, "done");
  CHECK(house.task_of(ticket).ok());
}

TEST_CASE("an order that was lost is sent again, one that is under way is not") {
  Replacing house;
  house.replace("a", next_load());
  house.out.sent.clear();
  house.pass(4, {&house.worker});
  house.out.sent.clear();
  house.clock.tick(3 * kNsPerSec);
  house.report(house.worker);
  CHECK(house.ordered().create.revision == 1);
  house.say(1, "creating");
  house.clock.tick(3 * kNsPerSec);
  house.say(1, "creating");
  CHECK(house.out.take<bus::ReplaceTask>().empty());
}

TEST_CASE("a repeated request makes no second replacement, also over restarts of the manager") {
  Replacing house;
  const Ticket first = house.replace("a", next_load(), other_bytes(), "same");
  const Ticket second = house.replace("a", next_load(), other_bytes(), "same");
  CHECK(house.out.take<bus::ReplaceTask>().size() == 1);
  house.restart(GENERATE(true, false));
  CHECK(house.task("a").replacement.state == "pending");
  const Ticket third = house.replace("a", next_load(), other_bytes(), "same");
  CHECK_FALSE(house.answered(third));
  house.out.sent.clear();
  SECTION("the worker had not heard of it") {
    house.join(house.worker);
    CHECK(house.ordered().create.revision == 1);
    house.say(1, "done");
  }
  SECTION("the worker had done it meanwhile") {
    house.worker.tasks["a"].replacement = {1, "done", "", 10};
    house.worker.tasks["a"].revision = 1;
    house.join(house.worker);
    CHECK(house.out.take<bus::ReplaceTask>().empty());
  }
  CHECK(house.task("a").revision == 1);
  CHECK(house.task_of(third).ok());
  CHECK_FALSE(house.answered(first));  // of the manager that died
  CHECK_FALSE(house.answered(second));
  CHECK(house.task_of(house.replace("a", next_load(), other_bytes(), "same")).ok());
  CHECK(house.task("a").incarnations.size() == 1);
  house.restart();
  CHECK(house.task("a").revision == 1);
  CHECK(house.task("a").state.sha256 == sha256_hex(other_bytes()));
}

TEST_CASE("the worker is lost in the middle: one task, with the old content; or with the new one, if it had it") {
  Replacing house;
  const Ticket ticket = house.replace("a", next_load());
  house.ordered();
  house.say(1, "saving");
  house.pass(7);
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(contains(house.task_of(ticket).error().message, "was lost"));
  CHECK(house.task("a").state.sha256 == sha256_hex(plugin_bytes()));
  house.out.sent.clear();
  SECTION("a new process") {
    FakeWorker fresh("w", 0);
    fresh.incarnation = "second";
    house.join(fresh);
    auto creates = house.out.take<bus::CreateTask>();
    REQUIRE(creates.size() == 1);
    CHECK(creates[0].second.sha256 == sha256_hex(plugin_bytes()));
    CHECK(creates[0].second.revision == 0);
  }
  SECTION("the same process, which had gone on") {
    house.worker.tasks["a"].replacement = {1, "done", "", 10};
    house.worker.tasks["a"].revision = 1;
    house.join(house.worker);
    CHECK(house.state("a") == "RUNNING");
    CHECK(house.task("a").revision == 1);
    CHECK(house.task("a").state.sha256 == sha256_hex(other_bytes()));
    CHECK(house.out.take<bus::CreateTask>().empty());
  }
  SECTION("the same process, but the user has replaced it in the queue since") {
    CHECK(house.task_of(house.replace("a", next_load(), other_bytes(2))).ok());
    const auto plan = house.join(house.worker);
    for (int n = 0; n < 12 && house.task("a").state.state == "SUBMITTED"; ++n) house.pass(1, {&house.worker});
    CHECK(house.task("a").state.sha256 == sha256_hex(other_bytes(2)));
    CHECK(house.task("a").revision == 2);
  }
}

TEST_CASE("a task that ends while it is replaced has ended") {
  Replacing house;
  const Ticket ticket = house.replace("a", next_load());
  house.ordered();
  House::end(house.worker, "a", "finished");
  house.report(house.worker);
  CHECK(house.verdict("a").kind == "finished");
  CHECK(contains(house.task_of(ticket).error().message, "the task has ended: finished"));
}

TEST_CASE("contents that nobody needs any more leave the store") {
  Replacing house;
  REQUIRE(house.load(load_of("b", 0)).ok());  // the same content
  house.settle(house.worker);
  house.out.sent.clear();
  house.replace("a", next_load());
  house.ordered();
  CHECK(house.stored(other_bytes()));
  house.say(1, "failed", "no");
  house.pass(7, {&house.worker});
  CHECK_FALSE(house.stored(other_bytes()));
  CHECK(house.stored(plugin_bytes()));
  for (int n = 2; n < 6; ++n) {
    house.replace("a", next_load(), other_bytes(n));
    const auto order = house.ordered();
    house.say(order.create.revision, "done");
    house.pass(7, {&house.worker});
  }
  CHECK_FALSE(house.stored(other_bytes(4)));
  CHECK(house.stored(other_bytes(5)));
  CHECK(house.stored(plugin_bytes()));  // b's
  // What a worker's drop folder has is kept.
  bus::PluginState dropped;
  dropped.name = "dropped.so";
  dropped.sha256 = sha256_hex(plugin_bytes());
  dropped.state = "added";
  house.worker.plugins = {dropped};
  house.report(house.worker);
  REQUIRE(house.stop("b").ok());
  house.pass(8, {&house.worker});
  CHECK(house.verdict("b").kind == "stopped");
  CHECK(house.stored(plugin_bytes()));
  // What was left behind by a manager that was killed goes too.
  std::ofstream(house.config.paths.store_dir() / (std::string(64, 'a') + ".so")) << "x";
  house.restart();
  house.join(house.worker);
  house.pass(70, {&house.worker});
  CHECK(std::filesystem::exists(house.config.paths.store_dir() / (std::string(64, 'a') + ".so")));
  house.clock.tick(24 * 3600 * kNsPerSec);  // nobody has noticed that there should be a task for it
  house.pass(2, {&house.worker});
  CHECK_FALSE(std::filesystem::exists(house.config.paths.store_dir() / (std::string(64, 'a') + ".so")));
  CHECK(house.stored(other_bytes(5)));
  CHECK(house.stored(plugin_bytes()));
}

TEST_CASE("a task that takes another's name while the content is taken in is not replaced by it") {
  Replacing house;
  house.out.held = true;
  const Ticket ticket = house.replace("a", next_load());
  REQUIRE(house.stop("a").ok());
  house.settle(house.worker);
  REQUIRE(house.verdict("a").kind == "stopped");
  bus::Load other = load_of("a", 0);
  other.sha256 = sha256_hex(plugin_bytes());
  REQUIRE(house.House::load(other, {}, false).ok());
  house.out.let_go();
  CHECK(house.answer_of(ticket).error().code == Code::kNotFound);
  CHECK(house.task("a").replacement.state.empty());
  CHECK(house.task("a").load.sha256 == sha256_hex(plugin_bytes()));
}

TEST_CASE("a failed load that claims another content's hash, or a task of it that ends, shortens nobody's grace") {
  Replacing house;
  REQUIRE(house.stop("a").ok());
  house.settle(house.worker);
  house.worker.tasks.clear();
  house.restart();  // what lies in the store has a day
  house.join(house.worker);
  REQUIRE(house.stored(plugin_bytes()));
  bus::Load claims = load_of("claims", 0);
  claims.sha256 = sha256_hex(plugin_bytes());
  house.core->load(++house.tickets, "claims", claims, other_bytes());
  CHECK(house.answer_of(house.tickets).error().code == Code::kInvalidArgument);
  house.pass(10, {&house.worker});
  CHECK(house.stored(plugin_bytes()));
  REQUIRE(house.House::load(load_of("uses", 0)).ok());
  house.settle(house.worker);
  REQUIRE(house.stop("uses").ok());
  house.settle(house.worker);
  house.worker.tasks.clear();
  house.pass(10, {&house.worker});
  CHECK(house.stored(plugin_bytes()));
}

TEST_CASE("what is remembered of a task's contents is bounded") {
  Replacing house;
  for (int n = 1; n <= 20; ++n) {
    house.replace("a", next_load(), other_bytes(n));
    house.say(house.ordered().create.revision, "done");
  }
  const auto info = house.task("a");
  CHECK(info.revision == 20);
  REQUIRE(info.incarnations.size() == 8);
  CHECK(info.incarnations.back().sha256 == sha256_hex(other_bytes(19)));
}
