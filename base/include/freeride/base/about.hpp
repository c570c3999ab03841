// Names in a log line whom it is about: in its text and, where lines are JSON, in a field of its own.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <string_view>

namespace freeride {

/// As an argument of a log line it is "task NAME", and the line's JSON has the field `task`. One of a line; any thread.
/// spdlog::info("{}: placed on {}", about_task(name), worker).
struct About {
  const char* kind;
  std::string_view name;
};
inline About about_task(std::string_view name) {
  return {"task", name};
}
inline About about_job(std::string_view name) {
  return {"job", name};
}
inline About about_worker(std::string_view name) {
  return {"worker", name};
}

namespace detail {
/// For the line that this thread is about to write.
void note_subject(const About& about);
}  // namespace detail

}  // namespace freeride

template <>
struct fmt::formatter<freeride::About> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  auto format(const freeride::About& about, fmt::format_context& context) const {
    freeride::detail::note_subject(about);
    return fmt::format_to(context.out(), "{} {}", about.kind, about.name);
  }
};
