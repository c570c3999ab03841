// Tables and parameters: what a plugin declares, and what is made of it.
#include <catch2/catch.hpp>
#include <string>

#include "grown.hpp"
#include "plugin.hpp"

using namespace freeride;
using namespace freeride::runner;

namespace {

freeride_status nothing(void*) {
  return FREERIDE_OK;
}

freeride_plugin good() {
  freeride_plugin table{};
  table.struct_size = sizeof(table);
  table.abi_version = FREERIDE_ABI_VERSION;
  table.name = "good";
  table.version = "1";
  table.summary = "";
  table.create = [](const freeride_host*, const freeride_task_info*, void**) -> freeride_status { return FREERIDE_OK; };
  table.init = table.start = table.run_next_step = table.pause = table.stop = nothing;
  table.destroy = [](void*) {};
  return table;
}

}  // namespace

TEST_CASE("plugin table: a good one, and one of a later minor version") {
  freeride_plugin table = good();
  CHECK(read_table(&table).ok());
  table.struct_size += 64;
  CHECK(read_table(&table).ok());
}

TEST_CASE("plugin table: one that the first version's header made is accepted for ever, a shorter one is not") {
  constexpr uint32_t kFirstTable = 112;
  freeride_plugin table = good();
  table.struct_size = kFirstTable;
  CHECK(read_table(&table).ok());
  table.struct_size = kFirstTable - sizeof(void*);
  const auto shorter = read_table(&table);
  REQUIRE_FALSE(shorter.ok());
  CHECK(shorter.error().text().find("has 104 bytes, ABI version 1 has at least 112") != std::string::npos);
}

TEST_CASE("plugin table: what a table ends before is null, whatever lies behind it") {
  struct Later {  // as tomorrow's header may have it
    uint32_t struct_size, abi_version;
    void* first;
    void* appended;
  };
  int something = 0;
  const Later whole{sizeof(Later), 1, &something, &something};
  CHECK(read_grown(whole).appended == &something);
  Later ends = whole;
  ends.struct_size = offsetof(Later, appended);
  CHECK(read_grown(ends).first == &something);
  CHECK(read_grown(ends).appended == nullptr);
  ends.struct_size = sizeof(Later) + 64;  // of a header after that
  CHECK(read_grown(ends).appended == &something);
}

TEST_CASE("plugin table: an imperative interface of an earlier header has nothing to prepare") {
  static freeride_imperative imperative{};
  imperative.struct_size = offsetof(freeride_imperative, prepare_gpu_workload);
  imperative.run_gpu_workload = imperative.prepare_gpu_workload = nothing;
  freeride_plugin table = good();
  table.extension = [](const char*) -> const void* { return &imperative; };
  const auto read = imperative_extension(table);
  REQUIRE(read);
  CHECK(read->run_gpu_workload == nothing);
  CHECK(read->prepare_gpu_workload == nullptr);
}

TEST_CASE("plugin table: broken ones") {
  CHECK_FALSE(read_table(nullptr).ok());
  const auto broken = [](auto change) {
    freeride_plugin table = good();
    change(table);
    return !read_table(&table).ok();
  };
  CHECK(broken([](auto& t) { t.abi_version = 0; }));
  CHECK(broken([](auto& t) { t.struct_size = 0; }));
  CHECK(broken([](auto& t) { t.struct_size = UINT32_MAX; }));
  CHECK(broken([](auto& t) { t.name = nullptr; }));
  CHECK(broken([](auto& t) { t.name = ""; }));
  CHECK(broken([](auto& t) { t.name = "Two Words"; }));
  CHECK(broken([](auto& t) { t.version = nullptr; }));
  CHECK(broken([](auto& t) { t.create = nullptr; }));
  CHECK(broken([](auto& t) { t.destroy = nullptr; }));
  CHECK(broken([](auto& t) { t.param_count = 1; }));
  CHECK(broken([](auto& t) {
    static const freeride_param_spec params[] = {{"key", nullptr, "help"}};
    t.params = params;
    t.param_count = 1;
  }));
}

TEST_CASE("parameters: defaults are filled in, the user's values win, others are rejected") {
  freeride_plugin table = good();
  const freeride_param_spec specs[] = {{"a", "1", "first"}, {"b", "", "second"}};
  table.params = specs;
  table.param_count = 2;
  auto params = resolve_params(table, {{"b", "x=y"}});
  REQUIRE(params.ok());
  CHECK(*params == Params{{"a", "1"}, {"b", "x=y"}});
  const auto unknown = resolve_params(table, {{"c", "1"}});
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().text() == "good has no parameter 'c'; it knows: a, b");
  CHECK_FALSE(resolve_params(table, {{"a", "1"}, {"a", "1"}}).ok());
}
