// WIRE.md and the golden files against the types.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "freeride/bus/json.hpp"
#include "samples.hpp"

namespace freeride::bus {
namespace {

using Row = std::pair<std::string, std::string>;  // field, type

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(FREERIDE_SOURCE_DIR) + "/bus/" + name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  REQUIRE(file.good());
  return text.str();
}

std::string name_of(const std::string&) {
  return "string";
}
[[maybe_unused]] std::string name_of(bool) {
  return "bool";
}
std::string name_of(uint32_t) {
  return "u32";
}
std::string name_of(uint64_t) {
  return "u64";
}
std::string name_of(int32_t) {
  return "i32";
}
std::string name_of(int64_t) {
  return "i64";
}
std::string name_of(double) {
  return "f64";
}
#define NAME_OF(T)                                 \
  [[maybe_unused]] std::string name_of(const T&) { \
    return #T;                                     \
  }
FREERIDE_BUS_EVENTS(NAME_OF)
FREERIDE_BUS_COMMANDS(NAME_OF)
FREERIDE_BUS_PARTS(NAME_OF)
#undef NAME_OF
template <class T>
std::string name_of(const std::vector<T>&) {
  return "[" + name_of(T()) + "]";
}
template <class T>
std::string name_of(const std::map<std::string, T>&) {
  return "{" + name_of(T()) + "}";
}

struct Rows {
  std::vector<Row> rows;
  template <class T>
  void operator()(const char* name, const T& value) {
    rows.emplace_back(name, name_of(value));
  }
};

template <class T>
std::vector<Row> rows_of() {
  Rows rows;
  T::fields(static_cast<const T&>(T()), rows);
  return rows.rows;
}

struct Section {
  std::string heading;
  std::vector<Row> rows;
};

// "### Type — topic `x/<key>`" and the table under it; "The envelope:" counts as one too.
std::map<std::string, Section> sections() {
  std::map<std::string, Section> sections;
  std::istringstream document(read_file("WIRE.md"));
  Section* section = nullptr;
  for (std::string line; std::getline(document, line);) {
    if (line == "The envelope:") line = "### Envelope";
    if (line.rfind("### ", 0) == 0) {
      const std::string type = line.substr(4, line.find(' ', 4) - 4);
      INFO(type);
      CHECK(sections.count(type) == 0);
      section = &sections[type];
      section->heading = line;
    } else if (line.rfind("## ", 0) == 0) {
      section = nullptr;
    } else if (section != nullptr && line.rfind("| `", 0) == 0) {
      const size_t name_end = line.find('`', 3), type_begin = name_end + 4, type_end = line.find(" |", type_begin);
      REQUIRE(type_end != std::string::npos);
      section->rows.emplace_back(line.substr(3, name_end - 3), line.substr(type_begin, type_end - type_begin));
      const bool has_meaning_and_since = line.find("|  | 1 |") == std::string::npos && line.back() == '|';
      CHECK(has_meaning_and_since);
    }
  }
  return sections;
}

TEST_CASE("WIRE.md lists every type, topic, command and field") {
  auto document = sections();
#define CHECK_ROWS(T)                                     \
  {                                                       \
    INFO(#T " in bus/WIRE.md differs from its fields()"); \
    CHECK(document.count(#T) == 1);                       \
    CHECK(document[#T].rows == rows_of<T>());             \
  }
#define CHECK_EVENT(T) \
  CHECK_ROWS(T)        \
  CHECK(document[#T].heading.find("topic `" + std::string(T::kTopic) + "/<") != std::string::npos);
#define CHECK_COMMAND(T) \
  CHECK_ROWS(T)          \
  CHECK(document[#T].heading.find("command `" + std::string(T::kCommand) + "`") != std::string::npos);
  CHECK_ROWS(Envelope)
  FREERIDE_BUS_EVENTS(CHECK_EVENT)
  FREERIDE_BUS_COMMANDS(CHECK_COMMAND)
  FREERIDE_BUS_PARTS(CHECK_ROWS)
  size_t types = 1;
#define COUNT(T) ++types;
  FREERIDE_BUS_EVENTS(COUNT)
  FREERIDE_BUS_COMMANDS(COUNT)
  FREERIDE_BUS_PARTS(COUNT)
  CHECK(document.size() == types);  // and none that there is not
}

// A type that is in the headers but not in types.hpp would escape every test that goes over all types.
TEST_CASE("types.hpp lists every struct of the headers") {
  std::set<std::string> listed;
#define LIST(T) listed.insert(#T);
  FREERIDE_BUS_EVENTS(LIST)
  FREERIDE_BUS_COMMANDS(LIST)
  FREERIDE_BUS_PARTS(LIST)
  std::set<std::string> declared;
  for (const char* header : {"events.hpp", "device_alarm.hpp", "commands.hpp"}) {
    std::istringstream text(read_file(std::string("include/freeride/bus/") + header));
    for (std::string line; std::getline(text, line);) {
      if (line.rfind("struct ", 0) == 0) declared.insert(line.substr(7, line.find(' ', 7) - 7));
    }
  }
  CHECK(listed == declared);
}

TEST_CASE("golden files decode to what they were made from") {
  const auto expected = nlohmann::json::parse(read_file("golden/expected.json"));
#define CHECK_GOLDEN(T)                                                                      \
  {                                                                                          \
    INFO(#T ": after appending a field, run bus-golden on bus/golden and look at the diff"); \
    auto decoded = decode<T>(read_file("golden/" #T ".msgpack"));                            \
    REQUIRE(decoded.ok());                                                                   \
    const auto value = to_json(*decoded);                                                    \
    CHECK(value == to_json(test::sample<T>()));                                              \
    for (const auto& [key, field] : value.items()) CHECK(expected.at(#T).at(key) == field);  \
  }
  FREERIDE_BUS_EVENTS(CHECK_GOLDEN)
  FREERIDE_BUS_COMMANDS(CHECK_GOLDEN)
  FREERIDE_BUS_PARTS(CHECK_GOLDEN)
  auto envelope = decode<Envelope>(read_file("golden/BubbleEnd.msgpack"));
  REQUIRE(envelope.ok());
  CHECK(to_json(*envelope) == to_json(test::sample<Envelope>()));
}

}  // namespace
}  // namespace freeride::bus
