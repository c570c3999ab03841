#include "freeride/base/config.hpp"

#include <stdexcept>
// What toml++ takes for granted is looked at in every build, and what does not hold is an error of the file:
// version 3.3 asserts it, or without assertions has the compiler rely on it, and "[&worker]" was enough.
#undef NDEBUG
#define TOML_ASSERT(expr)                          \
  do {                                             \
    if (!(expr)) throw std::logic_error("toml++"); \
  } while (false)
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wterminate"  // some of it is noexcept, and holds
#endif
#include <toml++/toml.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <sstream>

namespace freeride {
namespace {

constexpr const char* kSystemFile = "/etc/freeride/freeride.toml";
constexpr std::array<std::string_view, 8> kSections = {"manager", "worker",   "node", "bus",
                                                       "ctl",     "recorder", "web",  "accounts"};

std::string key_of(const CLI::Option& option) {
  std::string key = option.get_lnames().empty() ? "" : option.get_lnames().front();
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// FREERIDE_WEB_LISTEN is web's alone; FREERIDE_LISTEN is every program's that has such an option, but for those to
// which it means something else.
std::string variable_of(const std::string& section, const std::string& key) {
  std::string own = "FREERIDE_" + upper(section + "_" + key);
  const bool others = section == "web" && key == "listen";  // the manager's is the well-known one
  return others || std::getenv(own.c_str()) != nullptr ? own : "FREERIDE_" + upper(key);
}

std::string as_text(const toml::node& node) {
  if (auto text = node.value<std::string>()) return *text;
  if (const toml::array* list = node.as_array()) {
    std::string joined;
    for (const toml::node& each : *list) joined += (joined.empty() ? "" : ":") + as_text(each);
    return joined;
  }
  std::ostringstream out;
  out << toml::node_view<const toml::node>(node);
  return out.str();
}

/// A mistyped section would leave every value in it unused, without a word.
Status check_sections(const toml::table& root, const std::string& file) {
  for (const auto& [key, value] : root) {
    const std::string name(key.str());
    if (std::find(kSections.begin(), kSections.end(), name) == kSections.end())
      return Error{Code::kInvalidArgument, file + " has an unknown section or key '" + name + "'",
                   "its sections are [manager], [worker], [node], [bus], [ctl], [recorder], [web] and [accounts]"};
    if (!value.is_table())
      return Error{Code::kInvalidArgument, file + ": '" + name + "' is not a section", "write [" + name + "]"};
  }
  return {};
}

// `file` empty: the one that is named, or the system's; where there is none either, an empty table.
Result<toml::table> read_file(std::filesystem::path& file) {
  if (file.empty()) {
    if (const char* env = std::getenv("FREERIDE_CONFIG")) {
      file = env;
    } else if (std::filesystem::exists(kSystemFile)) {
      file = kSystemFile;
    }
  }
  toml::table root;
  if (!file.empty()) {
    std::error_code unreadable;
    if (!std::filesystem::exists(file, unreadable))
      return Error{Code::kInvalidArgument, "there is no configuration file " + file.string(),
                   "make it or unset FREERIDE_CONFIG"};
    try {
      root = toml::parse_file(file.string());
    } catch (const toml::parse_error& error) {
      std::ostringstream where;
      where << "cannot read configuration " << file.string() << ": " << error.description() << " ("
            << error.source().begin << ")";
      return Error{Code::kInvalidArgument, where.str(), "correct the file or unset FREERIDE_CONFIG"};
    } catch (const std::logic_error&) {
      return Error{Code::kInvalidArgument, "cannot read configuration " + file.string() + ": it is no TOML",
                   "correct the file or unset FREERIDE_CONFIG"};
    }
  }
  if (auto sections = check_sections(root, file.string()); !sections) return sections.error();
  return root;
}

}  // namespace

Result<std::map<std::string, std::vector<std::string>>> read_lists(const std::string& section,
                                                                   std::filesystem::path file) {
  const auto root = read_file(file);
  if (!root) return root.error();
  std::map<std::string, std::vector<std::string>> lists;
  const toml::table* table = (*root)[section].as_table();
  if (table == nullptr) return lists;
  for (const auto& [key, value] : *table) {
    const std::string name(key.str());
    const Error wrong{Code::kInvalidArgument, file.string() + ": [" + section + "] " + name + " is no list of texts",
                      "write " + name + " = [\"one\", \"other\"]"};
    if (!value.is_array()) return wrong;
    auto& texts = lists[name];
    for (const toml::node& each : *value.as_array()) {
      const auto text = each.value<std::string>();
      if (!each.is_string() || !text) return wrong;
      texts.push_back(*text);
    }
  }
  return lists;
}

Result<std::optional<std::string>> read_setting(const std::string& section, const std::string& key,
                                                std::filesystem::path file) {
  const auto root = read_file(file);
  if (!root) return root.error();
  const toml::table* table = (*root)[section].as_table();
  const toml::node* node = table != nullptr ? table->get(key) : nullptr;
  if (node == nullptr) return std::optional<std::string>();
  return std::optional(as_text(*node));
}

Status bind_config(CLI::App& app, const std::string& section, std::filesystem::path file) {
  auto read = read_file(file);
  if (!read) return read.error();
  toml::table& root = *read;
  toml::table* table = root[section].as_table();
  std::string known;
  for (CLI::Option* option : app.get_options()) {
    const std::string key = key_of(*option);
    if (key.empty() || key == "help" || key == "version") continue;
    known += (known.empty() ? "" : ", ") + key;
    option->envname(variable_of(section, key));
    if (table == nullptr) continue;
    if (const toml::node* node = table->get(key)) {
      try {
        option->default_val(as_text(*node));
      } catch (const CLI::Error& error) {
        return Error{Code::kInvalidArgument, file.string() + ": [" + section + "] " + key + ": " + error.what(),
                     "freeride-" + section + " --help says what it takes"};
      }
      option->force_callback();
    }
    table->erase(key);
  }
  if (table != nullptr && !table->empty()) {
    return Error{
        Code::kInvalidArgument,
        file.string() + ": [" + section + "] has an unknown key '" + std::string(table->begin()->first.str()) + "'",
        "known keys: " + known};
  }
  return {};
}

std::optional<int> parse_options(CLI::App& app, const std::string& program, const std::string& section, int argc,
                                 char** argv) {
  constexpr int kWrong = 2;
  const auto complain = [&program](const Error& error) {
    std::cerr << program << ": " << error.text() << std::endl;
    return kWrong;
  };
  app.set_version_flag("--version", FREERIDE_VERSION);
  const Status bound = bind_config(app, section);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version, whatever the file is like
    return complain({Code::kInvalidArgument, error.what(), "see " + program + " --help"});
  }
  if (!bound) return complain(bound.error());
  return std::nullopt;
}

CLI::Validator within(double low, double high) {
  const CLI::Range range(low, high);
  const auto check = [range](std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return "Value " + text + " is no number";
    return range(text);
  };
  return {check, range.get_description()};
}

CLI::Validator whole(int64_t low, int64_t high) {
  const std::string range = std::to_string(low) + (high == INT64_MAX ? " on" : " to " + std::to_string(high));
  const auto check = [low, high, range](std::string& text) -> std::string {
    int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failed] = std::from_chars(text.data(), end, value);
    if (failed == std::errc() && stop == end && value >= low && value <= high) return {};
    return "'" + text + "' is no whole number from " + range;
  };
  return {check, "from " + range};
}

}  // namespace freeride
