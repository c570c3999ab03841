// GPU faults: counted, blocked everywhere, kept over restarts, lifted by an operator.
#include <algorithm>

#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {

struct Faulty : House {
  explicit Faulty(const FaultLimits& limits = {2, 0, 0}) : House([&](CoreConfig& config) { config.faults = limits; }) {
    for (FakeWorker* worker : {&gpu, &other, &cpu}) {
      worker->memory_bytes = 16LL << 30;
      join(*worker);
    }
  }
  // A task of `user` runs in `where`'s bubbles and faults its GPU.
  void fault(FakeWorker& where, const std::string& name, const std::string& user = "alice") {
    auto wish = load_of(name, where.stage);
    wish.user = user;
    REQUIRE(load(wish).ok());
    for (int n = 0; n < 4; ++n) settle_all();
    REQUIRE(state(name) == "PAUSED");
    end(where, name, "failed");
    where.tasks[name].verdict.gpu_fault = true;
    report(where);
    where.tasks.erase(name);
  }
  void settle_all() {
    for (FakeWorker* worker : {&gpu, &other, &cpu}) obey(*worker);
  }
  bus::FaultsReply faults() {
    core->list_faults(++tickets);
    return std::get<bus::FaultsReply>(*answer_of(tickets));
  }
  Result<Reply> lift(const std::string& scope, const std::string& name) {
    core->lift_faults(++tickets, {scope, name});
    return answer_of(tickets);
  }
  bus::FaultCount count(const std::string& scope) {
    for (auto& one : faults().counts) {
      if (one.scope == scope) return one;
    }
    return {};
  }
  static FakeWorker on_gpu(const char* name, int stage) {
    FakeWorker worker(name, stage);
    worker.device = std::string("GPU-") + name;
    worker.model = "H100";
    return worker;
  }
  FakeWorker gpu = on_gpu("g", 0), other = on_gpu("o", 1), cpu{"c", 2};
};

}  // namespace

TEST_CASE("a plugin content that faults GPUs over its budget is blocked on all of them, and said") {
  Faulty house;
  auto bystander = load_of("bystander", 1);
  REQUIRE(house.load(bystander).ok());
  for (int n = 0; n < 4; ++n) house.settle_all();
  REQUIRE(house.state("bystander") == "PAUSED");
  house.fault(house.gpu, "first");
  CHECK(house.count("plugin").faults == 1);
  CHECK(house.count("plugin").blocked_unix_ms == 0);
  house.fault(house.gpu, "second");
  CHECK(house.count("plugin").faults == 2);
  CHECK(house.count("plugin").limit == 2);
  CHECK(house.count("plugin").blocked_unix_ms != 0);
  CHECK(house.count("plugin").last_task == "second");
  // Whoever runs the same content elsewhere is taken off, and stays off though its worker still reports it.
  CHECK(house.state("bystander") == "SUBMITTED");
  house.report(house.other);
  house.pass(3, {&house.gpu, &house.cpu});  // until no copy of it can execute
  CHECK(house.task("bystander").state.why == "faults");
  CHECK(contains(house.reason("bystander"), "freeride-ctl faults --lift plugin="));
  CHECK(house.task("bystander").restarts == 0);
  REQUIRE(house.load(load_of("third", 0)).ok());
  house.pass(3, {&house.gpu, &house.other, &house.cpu});
  CHECK(house.task("third").state.why == "faults");
  // Not by way of a replacement or a profile either.
  bus::TakeProfile wish;
  wish.load = load_of("");
  house.core->take_profile(++house.tickets, wish, plugin_bytes());
  CHECK(house.answer_of(house.tickets).error().code == Code::kRejected);
  // A CPU has no such faults.
  REQUIRE(house.load(load_of("on-cpu", 2)).ok());
  for (int n = 0; n < 4; ++n) house.settle_all();
  CHECK(house.state("on-cpu") == "PAUSED");
}

TEST_CASE("a block for GPU faults outlives the hour and a restart; an operator lifts it") {
  Faulty house;
  house.fault(house.gpu, "first");
  house.fault(house.gpu, "second");
  const std::string content = house.count("plugin").name;
  house.clock.tick(2 * 3600 * kNsPerSec);
  house.restart();
  for (FakeWorker* worker : {&house.gpu, &house.other, &house.cpu}) house.join(*worker);
  CHECK(house.count("plugin").faults == 0);
  CHECK(house.count("plugin").blocked_unix_ms != 0);
  REQUIRE(house.load(load_of("third", 0)).ok());
  CHECK(house.task("third").state.why == "faults");
  CHECK(house.lift("plugin", "0123456").error().code == Code::kNotFound);
  CHECK(house.lift("host", content).error().code == Code::kInvalidArgument);
  CHECK(house.lift("plugin", content.substr(0, 12)).ok());
  CHECK(house.faults().counts.empty());
  for (int n = 0; n < 4; ++n) house.settle_all();
  CHECK(house.state("third") == "PAUSED");
  house.restart();
  CHECK(house.faults().counts.empty());
}

TEST_CASE("faults are counted over an hour, and what was lifted is counted anew") {
  Faulty house;
  house.fault(house.gpu, "first");
  house.clock.tick(3601 * kNsPerSec);
  for (FakeWorker* worker : {&house.gpu, &house.other, &house.cpu}) house.join(*worker);
  house.fault(house.gpu, "second");
  CHECK(house.count("plugin").faults == 1);
  CHECK(house.count("plugin").blocked_unix_ms == 0);
  house.fault(house.gpu, "third");
  REQUIRE(house.lift("plugin", house.count("plugin").name).ok());
  house.fault(house.gpu, "fourth");
  CHECK(house.count("plugin").faults == 1);
  CHECK(house.count("plugin").blocked_unix_ms == 0);
}

TEST_CASE("a step of the wall clock makes no GPU fault older") {
  Faulty house;
  house.fault(house.gpu, "first");
  house.wall_ms = 48LL * 3600 * 1000;
  CHECK(house.count("plugin").faults == 1);
  house.fault(house.gpu, "second");
  CHECK(house.count("plugin").faults == 2);
  CHECK(house.count("plugin").blocked_unix_ms != 0);
}

TEST_CASE("users and jobs have budgets of faults of their own") {
  SECTION("user") {
    Faulty house({0, 1, 0});
    house.fault(house.gpu, "first", "mallory");
    auto wish = load_of("hers", 1);
    wish.user = "mallory";
    REQUIRE(house.load(wish).ok());
    CHECK(house.task("hers").state.why == "faults");
    CHECK(contains(house.reason("hers"), "mallory"));
    wish = load_of("his", 1);
    wish.user = "bob";
    REQUIRE(house.load(wish).ok());
    for (int n = 0; n < 4; ++n) house.settle_all();
    CHECK(house.state("his") == "PAUSED");
  }
  SECTION("job") {
    Faulty house({0, 0, 1});
    house.fault(house.gpu, "first");
    REQUIRE(house.load(load_of("next", 1)).ok());
    CHECK(house.task("next").state.why == "faults");
    CHECK(contains(house.reason("next"), "gpt"));
  }
  SECTION("no limit") {
    Faulty house({0, 0, 0});
    for (const char* name : {"a", "b", "c", "d", "e"}) house.fault(house.gpu, name);
    CHECK(house.count("plugin").faults == 5);
    CHECK(house.count("job").blocked_unix_ms == 0);
  }
}

TEST_CASE("a task that has faulted its GPU is not started again, whatever its submitter asked for") {
  Faulty house;
  for (const bool faults : {false, true}) {
    auto wish = load_of(faults ? "faults" : "crashes", 0);
    wish.restart = "on-failure";
    wish.restarts_most = 5;
    REQUIRE(house.load(wish).ok());
    for (int n = 0; n < 4; ++n) house.settle_all();
    House::end(house.gpu, wish.name, "failed");
    house.gpu.tasks[wish.name].verdict.gpu_fault = faults;
    house.report(house.gpu);
    house.gpu.tasks.erase(wish.name);
    CHECK(house.state(wish.name) == (faults ? "STOPPED" : "SUBMITTED"));
  }
}

TEST_CASE("a fault in a profile counts, and one that a worker of a CPU tells does not") {
  Faulty house({1, 0, 0});
  REQUIRE(house.load(load_of("t", 2)).ok());
  for (int n = 0; n < 4; ++n) house.settle_all();
  House::end(house.cpu, "t", "failed");
  house.cpu.tasks["t"].verdict.gpu_fault = true;
  house.report(house.cpu);
  CHECK(house.faults().counts.empty());
  REQUIRE(house.load(load_of("u", 0)).ok());
  auto created = house.out.take<bus::CreateTask>();
  REQUIRE_FALSE(created.empty());
  const auto& [sent, order] = created.front();
  REQUIRE(order.purpose == "profile");
  FakeWorker& there = sent.peer == "peer-g" ? house.gpu : house.other;
  there.tasks[order.task].task = order.task;
  there.tasks[order.task].purpose = "profile";
  House::end(there, order.task, "failed");
  there.tasks[order.task].verdict.gpu_fault = true;
  house.report(there);
  CHECK(house.count("plugin").faults == 1);
}
