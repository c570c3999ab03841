#include "env_file.hpp"

#include <algorithm>
#include <set>

namespace freeride::ctl {
namespace {

constexpr std::string_view kSpace = " \t\r\n", kComment = "#;", kEscaped = "\"\\`$";

// One line, or the several of one value; a comment or an empty line has no name.
struct Entry {
  std::string_view text;  // with the newline
  std::string name, value;
  bool open = false;  // the file ends within it
};

void trim_end(std::string& text) {
  text.erase(text.find_last_not_of(kSpace) + 1);
}

// The states of systemd's own reader, so that both take the same for a setting.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::vector<Entry> all() {
    std::vector<Entry> entries;
    while (at_ < text_.size()) {
      const size_t begin = at_;
      Entry entry;
      const size_t first = text_.find_first_not_of(" \t\r", at_);
      const std::string_view line = text_.substr(at_, text_.find('\n', at_) - at_);
      const size_t equals = line.find('=');
      if (equals == line.npos || (first < text_.size() && kComment.find(text_[first]) != kComment.npos)) {
        at_ = std::min(text_.size(), at_ + line.size() + 1);
      } else {
        entry.name = line.substr(std::min(first - begin, equals), equals - std::min(first - begin, equals));
        trim_end(entry.name);
        at_ += equals + 1;
        entry.open = !read_value(entry.value);
      }
      entry.text = text_.substr(begin, at_ - begin);
      entries.push_back(std::move(entry));
    }
    return entries;
  }

 private:
  // False: the text ends within a quote, or after a backslash.
  bool read_value(std::string& value) {
    bool begun = false;  // quotes are some at the beginning only, and after another quoted part
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '\n') break;
      if (c == '\\') {
        if (at_ == text_.size()) return false;
        if (const char next = text_[at_++]; next != '\n') value += next;
        begun = true;
      } else if (!begun && (c == '\'' || c == '"')) {
        if (!read_quoted(c, value)) return false;
      } else if (begun || kSpace.find(c) == kSpace.npos) {
        value += c;
        begun = true;
      }
    }
    if (begun) trim_end(value);
    return true;
  }

  bool read_quoted(char quote, std::string& value) {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == quote) return true;
      if (quote == '\'' || c != '\\' || at_ == text_.size()) {
        value += c;
        continue;
      }
      const char next = text_[at_++];
      if (next == '\n') continue;
      if (kEscaped.find(next) == kEscaped.npos) value += c;
      value += next;
    }
    return false;
  }

  std::string_view text_;
  size_t at_ = 0;
};

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_./:,@%+=*[]").find(c) != std::string_view::npos;
}

std::string line_of(const EnvSetting& setting) {
  if (std::all_of(setting.value.begin(), setting.value.end(), is_bare))
    return setting.name + "=" + setting.value + "\n";
  std::string line = setting.name + "=\"";
  for (const char c : setting.value) {
    if (kEscaped.find(c) != kEscaped.npos) line += '\\';
    line += c;
  }
  return line + "\"\n";
}

}  // namespace

std::string env_value(std::string_view text, std::string_view name) {
  std::string value;
  for (Entry& entry : Reader(text).all()) {
    if (entry.name == name) value = std::move(entry.value);
  }
  return value;
}

Result<std::string> with_env_settings(std::string_view text, const std::vector<EnvSetting>& settings,
                                      const std::string& where) {
  const std::vector<Entry> entries = Reader(text).all();
  if (!entries.empty() && entries.back().open) {
    return Error{Code::kInvalidArgument, where + " ends within the value of " + entries.back().name,
                 "close its quote, or remove the backslash at its end"};
  }
  std::string changed;
  std::set<std::string> said;
  for (const Entry& entry : entries) {
    const auto setting =
        std::find_if(settings.begin(), settings.end(), [&](const EnvSetting& one) { return one.name == entry.name; });
    if (setting == settings.end()) {
      changed += entry.text;
    } else if (said.insert(entry.name).second) {
      changed += entry.value == setting->value ? std::string(entry.text) : line_of(*setting);
    }
  }
  for (const EnvSetting& setting : settings) {
    if (!said.insert(setting.name).second) continue;
    if (!changed.empty() && changed.back() != '\n') changed += '\n';
    changed += line_of(setting);
  }
  return changed;
}

}  // namespace freeride::ctl
