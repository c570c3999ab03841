// The SDK through the ABI: what a plugin declares, what it may throw, what the host gets to hear.
#include <catch2/catch.hpp>
#include <cstring>

#include "freeride/plugin.hpp"
#include "plugin_driver.hpp"

using freeride::testing::Driver;
using freeride::testing::open_plugin;

extern "C" size_t freeride_test_plugin_bytes_c11(void);
extern "C" size_t freeride_test_plugin_bytes_cxx11();
extern "C" size_t freeride_test_plugin_bytes_cxx17();

namespace {
const freeride_plugin* sample() {
  static const freeride_plugin* const plugin = open_plugin(FREERIDE_BUILD_DIR "/test-plugins/sdk_sample.so");
  return plugin;
}
}  // namespace

TEST_CASE("every language reads the same table") {
  CHECK(freeride_test_plugin_bytes_c11() == sizeof(freeride_plugin));
  CHECK(freeride_test_plugin_bytes_cxx11() == sizeof(freeride_plugin));
  CHECK(freeride_test_plugin_bytes_cxx17() == sizeof(freeride_plugin));
}

TEST_CASE("the table says who the plugin is and what it understands") {
  const auto* plugin = sample();
  CHECK(plugin->struct_size == sizeof(freeride_plugin));
  CHECK(plugin->abi_version == FREERIDE_ABI_VERSION);
  CHECK(plugin->name == std::string("sdk-sample"));
  CHECK(plugin->version == std::string("1.2"));
  CHECK(plugin->summary == std::string("what the SDK's test drives"));
  REQUIRE(plugin->param_count == 7);
  CHECK(plugin->params[0].key == std::string("steps"));
  CHECK(plugin->params[0].default_value == std::string("3"));
  CHECK(plugin->params[0].help == std::string("steps until it is finished (1..100)"));
  CHECK(plugin->params[1].default_value == std::string("0.1"));  // not 0.10000000000000001
  CHECK(plugin->params[2].default_value == std::string("7"));
  CHECK(plugin->params[3].default_value == std::string("0"));
  CHECK(plugin->params[4].help == std::string("a colour (red|blue)"));
  CHECK(plugin->extension("test.sample/1") != nullptr);
  CHECK(plugin->extension("test.sample/2") == nullptr);
}

TEST_CASE("a task runs to its end, over pauses") {
  Driver task(sample(), "/scratch", {{"steps", "5"}, {"share", "0.25"}, {"loud", "yes"}, {"colour", "blue"}});
  CHECK(task.run(100, 2) == FREERIDE_FINISHED);
  CHECK(task.steps == 5);
  CHECK(task.metrics.at("done") == 5);
  CHECK(task.metrics.at("share") == 0.25);
  CHECK(task.metrics.at("byte") == 7);
  CHECK(task.logged("created task on cpu-0"));
  CHECK(task.logged("colour blue"));
  CHECK(task.stop() == FREERIDE_OK);
  CHECK(task.logged("stopped after 5, scratch /scratch/x"));
}

TEST_CASE("a yield point behind queued work: without the extension, with an older host, with this one") {
  static int points = 0;
  points = 0;
  freeride_yield yield{
      sizeof(freeride_yield), 0, [](void*) -> freeride_status { return ++points, FREERIDE_OK; },
      [](void*, freeride_status (*wait)(void*, int32_t), void* argument) { return wait(argument, 0); }};
  const auto step = [&](const freeride_yield* host, int steps = 1) {
    Driver task(sample(), "/scratch");
    task.yield = host;
    REQUIRE(task.create() == FREERIDE_OK);
    REQUIRE(task.init() == FREERIDE_OK);
    freeride_status status = FREERIDE_OK;
    for (int i = 0; i < steps; ++i) status = task.step();
    return std::pair(status, task.metrics);
  };
  CHECK(step(nullptr).second.at("marked") == 0);
  CHECK(step(&yield).second.at("left") == 1);
  CHECK(points == 0);
  CHECK(step(&yield, 2).first == FREERIDE_ERROR);  // what the queue throws goes on from the yield point
  yield.struct_size = offsetof(freeride_yield, yield_queued);
  const auto [status, metrics] = step(&yield);
  CHECK(status == FREERIDE_OK);
  CHECK(metrics.at("left") == 0);  // all of it, then a yield point as any other
  CHECK(points == 1);
}

TEST_CASE("parameters that make no sense are refused with a sentence") {
  struct Row {
    const char* key;
    const char* value;
    const char* message;
  };
  const auto row = GENERATE(values<Row>({
      {"steps", "0", "parameter steps=0: must be a whole number in 1..100"},
      {"steps", "many", "parameter steps=many: must be a whole number in 1..100"},
      {"steps", "3.5", "parameter steps=3.5: must be a whole number in 1..100"},
      {"steps", "", "parameter steps=: must be a whole number in 1..100"},
      {"steps", " 3", "parameter steps= 3: must be a whole number in 1..100"},
      {"steps", "99999999999999999999", "parameter steps=99999999999999999999: must be a whole number in 1..100"},
      {"share", "1.01", "parameter share=1.01: must be a number in 0..1"},
      {"share", "nan", "parameter share=nan: must be a number in 0..1"},
      {"byte", "256", "parameter byte=256: must be a whole number"},
      {"byte", "-1", "parameter byte=-1: must be a whole number"},
      {"loud", "maybe", "parameter loud=maybe: must be 0 or 1"},
      {"colour", "green", "parameter colour=green: must be one of red|blue"},
      {"color", "red",
       "unknown parameter 'color'; this plugin has: steps, share, byte, loud, colour, fail-in, fail-how"},
  }));
  Driver task(sample(), "/scratch", {{row.key, row.value}});
  CHECK(task.create() == FREERIDE_BAD_PARAMETER);
  CHECK(task.failure == row.message);
}

TEST_CASE("whatever is thrown becomes a status and a reason") {
  struct Row {
    const char* how;
    freeride_status status;
    const char* reason;
  };
  const auto row = GENERATE(values<Row>({{"error", FREERIDE_ERROR, "failed as told in "},
                                         {"memory", FREERIDE_OUT_OF_MEMORY, "out of host memory"},
                                         {"unavailable", FREERIDE_UNAVAILABLE, "the device sleeps"},
                                         {"parameter", FREERIDE_BAD_PARAMETER, "steps and share do not go together"},
                                         {"int", FREERIDE_ERROR, "threw something that is no std::exception"}}));
  const std::string where = GENERATE("create", "init", "start", "step", "pause", "stop");
  Driver task(sample(), "/scratch", {{"fail-in", where}, {"fail-how", row.how}});
  freeride_status status = task.create();
  if (where != "create") {
    REQUIRE(status == FREERIDE_OK);
    if (where == "init") status = task.init();
    if (where == "start") status = task.start();
    if (where == "step") status = task.step();
    if (where == "pause") status = task.pause();
    if (where == "stop") status = task.stop();
  }
  // BAD_PARAMETER is a status of create alone.
  const bool translated = row.status == FREERIDE_BAD_PARAMETER && where != "create";
  CHECK(status == (translated ? FREERIDE_ERROR : row.status));
  CHECK_THAT(task.failure, Catch::StartsWith(row.reason));
}

namespace {
class Plain : public freeride::SideTask {
  freeride::Step RunNextStep() override { return freeride::Step::kMore; }
};
class DeclaredTwice : public Plain {
  freeride::Param<int> one_{this, "one", 1, ""};
  freeride::Param<int> again_{this, "one", 2, ""};
};
class BadRange : public Plain {
  freeride::Param<int> one_{this, "one", 1, "", {5, 1}};
};
class Counted : public Plain {
 public:
  Counted() { ++alive; }
  ~Counted() override { --alive; }
  static int alive;

 private:
  void CreateSideTask() override { throw freeride::TaskError("no"); }
};
int Counted::alive = 0;

// As FREERIDE_PLUGIN does it: one table for the life of the process.
template <class Task>
const freeride_plugin* table_of(const char* class_name) {
  static const freeride_plugin* const table = freeride::PluginGlue::make_table<Task>(class_name, {});
  return table;
}
}  // namespace

TEST_CASE("a class alone is a plugin: name from the class, no parameters, every transition there") {
  const auto* plugin = table_of<Plain>("some::HTTPPlain2Task");
  CHECK(plugin->name == std::string("httpplain2_task"));
  CHECK(plugin->param_count == 0);
  Driver task(plugin, "/scratch");
  CHECK(task.run(10, 3) == FREERIDE_OK);
  CHECK(task.stop() == FREERIDE_OK);
}

TEST_CASE("an author's slip in a declaration is told at create") {
  Driver twice(table_of<DeclaredTwice>("DeclaredTwice"), "/scratch");
  CHECK(twice.create() == FREERIDE_ERROR);
  CHECK(twice.failure == "parameter one is declared twice");
  Driver range(table_of<BadRange>("BadRange"), "/scratch");
  CHECK(range.create() == FREERIDE_ERROR);
  CHECK(range.failure == "parameter one: its range must be {least, greatest}");
}

TEST_CASE("a failed create frees what it made") {
  Driver task(table_of<Counted>("Counted"), "/scratch");
  CHECK(task.create() == FREERIDE_ERROR);
  CHECK(Counted::alive == 0);
}

TEST_CASE("a class that keeps its state offers freeride.state/1, and no other does") {
  CHECK(sample()->extension(FREERIDE_EXTENSION_STATE) == nullptr);
  const auto* keeper = open_plugin(FREERIDE_BUILD_DIR "/test-plugins/keeper.so");
  CHECK(keeper->extension("test.sample/1") == nullptr);
  Driver task(keeper, "/scratch", {{"step_us", "0"}});
  REQUIRE(task.run(5) == FREERIDE_OK);
  CHECK(task.state()->struct_size == sizeof(freeride_state));
  CHECK(task.state()->version == 1);
  std::string state;
  REQUIRE(task.save(state) == FREERIDE_OK);
  Driver next(keeper, "/scratch", {{"step_us", "0"}});
  REQUIRE(next.run(0) == FREERIDE_OK);
  REQUIRE(next.restore(state) == FREERIDE_OK);
  REQUIRE(next.step() == FREERIDE_OK);
  CHECK(next.metrics.at("n") == 6);
  CHECK(next.restore(state, 2) == FREERIDE_ERROR);
  CHECK(next.failure == "a state of version 2");
  Driver failing(keeper, "/scratch", {{"fail_in", "save"}});
  REQUIRE(failing.run(0) == FREERIDE_OK);
  CHECK(failing.save(state) == FREERIDE_ERROR);
  CHECK(failing.failure == "failed as told in save");
}
