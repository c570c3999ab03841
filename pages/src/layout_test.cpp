// The specification's tables and the header must say the same: names, offsets, sizes, and no byte that neither speaks
// of.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "freeride/pages.h"
#include "frozen/version_1.h"

namespace {

struct Field {
  std::string name;
  size_t offset, size;
};

#define FIELD(type, name)                           \
  Field {                                           \
#name, offsetof(type, name), sizeof(type::name) \
  }

struct Layout {
  size_t size;
  std::vector<Field> fields;
};

std::map<std::string, Layout> layouts_of_header() {
  std::map<std::string, Layout> layouts;
#define T freeride_page_header
  layouts["header"] = {
      sizeof(T), {FIELD(T, magic), FIELD(T, major), FIELD(T, minor), FIELD(T, size_bytes), FIELD(T, incarnation)}};
#undef T
#define T freeride_bubble_page
  layouts["bubble"] = {sizeof(T),
                       {FIELD(T, header),
                        FIELD(T, job),
                        FIELD(T, device),
                        FIELD(T, framework),
                        FIELD(T, rank),
                        FIELD(T, stage),
                        FIELD(T, stages),
                        FIELD(T, replica),
                        FIELD(T, replicas),
                        FIELD(T, pid),
                        FIELD(T, budget),
                        FIELD(T, flags),
                        FIELD(T, state_word),
                        FIELD(T, begin_ns),
                        FIELD(T, wake),
                        FIELD(T, hook_state),
                        FIELD(T, iteration),
                        FIELD(T, waits),
                        FIELD(T, relearned),
                        FIELD(T, usable_bytes),
                        FIELD(T, bubbles),
                        FIELD(T, compute_ns),
                        FIELD(T, expected_ns),
                        FIELD(T, wanted_bytes),
                        FIELD(T, held),
                        FIELD(T, held_with_leases),
                        FIELD(T, bell),
                        FIELD(T, noted),
                        FIELD(T, idle_flags),
                        FIELD(T, idle_marked),
                        FIELD(T, idle_begun),
                        FIELD(T, idle_begin_ns),
                        FIELD(T, idle_expected_ns),
                        FIELD(T, idle_ended),
                        FIELD(T, reserved1),
                        FIELD(T, learned),
                        FIELD(T, history),
                        FIELD(T, iterations),
                        FIELD(T, phases)}};
#undef T
#define T freeride_phase
  layouts["phase"] = {sizeof(T),
                      {FIELD(T, name), FIELD(T, learned), FIELD(T, count), FIELD(T, total_ns), FIELD(T, apart_ns),
                       FIELD(T, reserved0)}};
#undef T
#define T freeride_bell_page
  layouts["bell"] = {sizeof(T), {FIELD(T, header), FIELD(T, rings), FIELD(T, reserved0)}};
#undef T
#define T freeride_hold_cost
  layouts["hold_cost"] = {sizeof(T),
                          {FIELD(T, increase_ppm), FIELD(T, low_ppm), FIELD(T, high_ppm), FIELD(T, periods)}};
#undef T
#define T freeride_learned
  layouts["learned"] = {sizeof(T),
                        {FIELD(T, low_ns), FIELD(T, mid_ns), FIELD(T, high_ns), FIELD(T, samples), FIELD(T, type)}};
#undef T
#define T freeride_bubble_record
  layouts["bubble_record"] = {sizeof(T),
                              {FIELD(T, state_word), FIELD(T, begin_ns), FIELD(T, end_ns), FIELD(T, learned_low_ns)}};
#undef T
#define T freeride_iteration_record
  layouts["iteration_record"] = {sizeof(T),
                                 {FIELD(T, iteration), FIELD(T, begin_ns), FIELD(T, end_ns), FIELD(T, bubble_ns)}};
#undef T
#define T freeride_sent_page
  layouts["sent"] = {sizeof(T),
                     {FIELD(T, header), FIELD(T, ranks), FIELD(T, reserved0), FIELD(T, reserved1), FIELD(T, rank),
                      FIELD(T, sent), FIELD(T, world_rank), FIELD(T, met), FIELD(T, ended)}};
#undef T
#define T freeride_sent_rank
  layouts["sent_rank"] = {sizeof(T), {FIELD(T, status), FIELD(T, pid), FIELD(T, start_time)}};
#undef T
#define T freeride_lease_page
  layouts["lease"] = {sizeof(T),
                      {FIELD(T, header), FIELD(T, sequence), FIELD(T, order), FIELD(T, kind), FIELD(T, iteration),
                       FIELD(T, lease_id), FIELD(T, deadline_ns), FIELD(T, opened_ns), FIELD(T, grace_ns),
                       FIELD(T, hang_ns), FIELD(T, begin_ns), FIELD(T, orders_until_ns), FIELD(T, orders_end_ns)}};
#undef T
#define T freeride_answer_page
  layouts["answer"] = {sizeof(T), {FIELD(T, header),        FIELD(T, sequence),       FIELD(T, state),
                                   FIELD(T, transition),    FIELD(T, result),         FIELD(T, lease_id),
                                   FIELD(T, transition_ns), FIELD(T, last_paused_ns), FIELD(T, last_paused_cpu_ns),
                                   FIELD(T, steps),         FIELD(T, step_ns),        FIELD(T, lease_step_ns),
                                   FIELD(T, predicted_ns),  FIELD(T, skipped),        FIELD(T, create_ns),
                                   FIELD(T, init_ns),       FIELD(T, first_step_ns),  FIELD(T, pause_seen_ns),
                                   FIELD(T, finished),      FIELD(T, message),        FIELD(T, metrics),
                                   FIELD(T, saved_lease),   FIELD(T, restored)}};
#undef T
#define T freeride_saved_state
  layouts["saved_state"] = {
      sizeof(T),
      {FIELD(T, magic), FIELD(T, major), FIELD(T, version), FIELD(T, lease_id), FIELD(T, steps), FIELD(T, size),
       FIELD(T, status), FIELD(T, present), FIELD(T, plugin), FIELD(T, instance)}};
#undef T
#define T freeride_profile_record
  layouts["profile_record"] = {
      sizeof(T), {FIELD(T, magic), FIELD(T, major), FIELD(T, samples), FIELD(T, stop_ns), FIELD(T, reserved0)}};
#undef T
#define T freeride_profile_sample
  layouts["profile_sample"] = {sizeof(T), {FIELD(T, duration_ns), FIELD(T, kind), FIELD(T, piece)}};
#undef T
#define T freeride_shim_page
  layouts["shim"] = {sizeof(T), {FIELD(T, magic),         FIELD(T, version),      FIELD(T, processes),
                                 FIELD(T, submissions),   FIELD(T, waits),        FIELD(T, waited_ns),
                                 FIELD(T, captured),      FIELD(T, refused),      FIELD(T, host_functions),
                                 FIELD(T, measured),      FIELD(T, measured_ns),  FIELD(T, longest_ns),
                                 FIELD(T, longest_name),  FIELD(T, leases),       FIELD(T, lease_longest_ns),
                                 FIELD(T, too_long),      FIELD(T, too_long_ns),  FIELD(T, too_long_name),
                                 FIELD(T, let_in),        FIELD(T, stalled),      FIELD(T, late),
                                 FIELD(T, late_ns),       FIELD(T, late_most_ns), FIELD(T, full_most_ns),
                                 FIELD(T, export_tables), FIELD(T, unlisted),     FIELD(T, full),
                                 FIELD(T, full_ns),       FIELD(T, marks),        FIELD(T, held),
                                 FIELD(T, reserved0),     FIELD(T, names)}};
#undef T
#define T freeride_shim_name
  layouts["shim_name"] = {sizeof(T), {FIELD(T, state), FIELD(T, name), FIELD(T, calls)}};
#undef T
#define T freeride_metric
  layouts["metric"] = {sizeof(T), {FIELD(T, name), FIELD(T, value)}};
#undef T
  return layouts;
}

size_t size_of_type(const std::string& type, const std::map<std::string, Layout>& layouts) {
  static const std::regex form(R"(([a-z_0-9]+)((?:\[\d+\])*))");
  std::smatch match;
  if (!std::regex_match(type, match, form)) return 0;
  static const std::map<std::string, size_t> basic = {{"u8", 1},  {"char", 1}, {"u32", 4},
                                                      {"i32", 4}, {"u64", 8},  {"f64", 8}};
  const std::string name = match[1];
  size_t size = 0;
  if (basic.count(name) != 0) size = basic.at(name);
  if (layouts.count(name) != 0) size = layouts.at(name).size;
  const std::string dimensions = match[2];
  static const std::regex number(R"(\d+)");
  for (std::sregex_iterator at(dimensions.begin(), dimensions.end(), number), end; at != end; ++at) {
    size *= std::stoul(at->str());
  }
  return size;
}

}  // namespace

TEST_CASE("the header's fields leave no byte out") {
  for (const auto& [name, layout] : layouts_of_header()) {
    INFO(name);
    size_t at = 0;
    for (const auto& field : layout.fields) {
      INFO(field.name);
      CHECK(field.offset == at);
      at = field.offset + field.size;
    }
    CHECK(at == layout.size);
  }
}

TEST_CASE("the specification's tables say what the header says") {
  const auto layouts = layouts_of_header();
  std::ifstream file(FREERIDE_PAGES_README);
  REQUIRE(file.good());
  const std::regex heading(R"(### ([a-z_]+))");
  const std::regex row(R"(\| (\d+) \| ([^ |]+) \| ([a-z_0-9]+) \|.*)");
  std::map<std::string, std::vector<Field>> tables;
  std::string line, table;
  while (std::getline(file, line)) {
    std::smatch match;
    if (std::regex_match(line, match, heading)) table = match[1];
    if (std::regex_match(line, match, row)) {
      tables[table].push_back({match[3], std::stoul(match[1]), size_of_type(match[2], layouts)});
    }
  }
  CHECK(tables.size() == layouts.size());
  for (const auto& [name, layout] : layouts) {
    INFO(name);
    REQUIRE(tables.count(name) == 1);
    const auto& fields = tables[name];
    REQUIRE(fields.size() == layout.fields.size());
    for (size_t i = 0; i < fields.size(); ++i) {
      INFO(layout.fields[i].name);
      CHECK(fields[i].name == layout.fields[i].name);
      CHECK(fields[i].offset == layout.fields[i].offset);
      CHECK(fields[i].size == layout.fields[i].size);
    }
  }
}

TEST_CASE("no field of version 1 has moved") {
  const auto layouts = layouts_of_header();
  const char* const names[] = {"bubble", "sent", "lease", "answer"};  // by version_1_kind
  for (const version_1_field* old = version_1_fields; old->name != nullptr; ++old) {
    INFO(names[old->kind] << "." << old->name);
    const auto& fields = layouts.at(names[old->kind]).fields;
    const auto same =
        std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.name == old->name; });
    REQUIRE(same != fields.end());
    CHECK(same->offset == old->offset);
    CHECK(same->size == old->size);
  }
}
