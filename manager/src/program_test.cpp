// Programs in place of plugins: what the manager asks of them, and where they may run.
#include "freeride/base/sha256.hpp"
#include "test_support.hpp"

namespace freeride::manager {
namespace {

bus::Load program_of(std::vector<std::string> words) {
  bus::Load load;
  load.program = std::move(words);
  load.no_profile = true;
  load.user = "ann";
  return load;
}

TEST_CASE("a program is placed without a profile and without a content, under its own name") {
  House house;
  FakeWorker worker("w", 0);
  worker.programs = true;
  house.join(worker);
  const auto answer = house.load(program_of({"/usr/bin/gzip", "-r", "/data"}), "", false);
  REQUIRE(answer.ok());
  CHECK(answer->state.task == "gzip");
  CHECK(answer->state.plugin == "gzip");
  const auto sent = house.out.take<bus::CreateTask>();
  REQUIRE(sent.size() == 1);
  const bus::CreateTask& order = sent.front().second;
  CHECK(order.purpose == "run");
  CHECK(order.program == std::vector<std::string>{"/usr/bin/gzip", "-r", "/data"});
  CHECK(order.sha256 == sha256_hex(std::string("/usr/bin/gzip\0-r\0/data\0", 23)));
  CHECK(order.predicted_step_ns == 0);
}

TEST_CASE("a program waits for a worker that runs programs") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(program_of({"gzip"}), "", false).ok());
  CHECK(house.out.take<bus::CreateTask>().empty());
  CHECK(house.task("gzip").state.reason.find("runs programs") != std::string::npos);
  FakeWorker newer("v", 1);
  newer.programs = true;
  house.join(newer);
  house.core->tick();
  CHECK(house.out.take<bus::CreateTask>().size() == 1);
}

TEST_CASE("what makes no sense of a program is refused") {
  House house;
  const auto refused = [&](const bus::Load& load) {
    const auto answer = house.load(load, "", false);
    return !answer.ok() && answer.error().code == Code::kInvalidArgument;
  };
  CHECK(refused(program_of({""})));
  CHECK(refused(program_of({std::string("a\0b", 3)})));
  CHECK(refused(program_of(std::vector<std::string>(1025, "x"))));
  CHECK(refused(program_of({"x", std::string(70'000, 'x')})));
  auto load = program_of({"x"});
  load.no_profile = false;
  CHECK(refused(load));
  load = program_of({"x"});
  load.steps = 5;
  CHECK(refused(load));
  load = program_of({"x"});
  load.params["a"] = "b";
  CHECK(refused(load));
  load = program_of({"x"});
  load.sha256 = std::string(64, 'a');
  CHECK(refused(load));
}

}  // namespace
}  // namespace freeride::manager
