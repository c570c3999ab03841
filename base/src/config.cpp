#include "freeride/base/config.hpp"

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

namespace freeride {
namespace {

constexpr const char* kSystemFile = "/etc/freeride/freeride.toml";

std::string key_of(const CLI::Option& option) {
  std::string key = option.get_lnames().empty() ? "" : option.get_lnames().front();
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string as_text(const toml::node& node) {
  if (auto text = node.value<std::string>()) return *text;
  std::ostringstream out;
  out << toml::node_view<const toml::node>(node);
  return out.str();
}

}  // namespace

Status bind_config(CLI::App& app, const std::string& section, std::filesystem::path file) {
  if (file.empty()) {
    if (const char* env = std::getenv("FREERIDE_CONFIG")) {
      file = env;
    } else if (std::filesystem::exists(kSystemFile)) {
      file = kSystemFile;
    }
  }
  toml::table root;
  if (!file.empty()) {
    try {
      root = toml::parse_file(file.string());
    } catch (const toml::parse_error& error) {
      std::ostringstream where;
      where << "cannot read configuration " << file.string() << ": " << error.description() << " ("
            << error.source().begin << ")";
      return Error{Code::kInvalidArgument, where.str(), "mend the file or unset FREERIDE_CONFIG"};
    }
  }
  toml::table* table = root[section].as_table();
  std::string known;
  for (CLI::Option* option : app.get_options()) {
    const std::string key = key_of(*option);
    if (key.empty() || key == "help" || key == "version") continue;
    known += (known.empty() ? "" : ", ") + key;
    option->envname("FREERIDE_" + upper(key));
    if (table == nullptr) continue;
    if (const toml::node* node = table->get(key)) {
      option->default_val(as_text(*node));
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

CLI::Validator within(double low, double high) {
  const CLI::Range range(low, high);
  const auto check = [range](std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return "Value " + text + " is no number";
    return range(text);
  };
  return {check, range.get_description()};
}

}  // namespace freeride
