// Catch2 3 under the names of Catch2 2, which the tests use.
#pragma once

#include <catch2/catch_all.hpp>
#include <string>

using Catch::Approx;

namespace Catch {

using Matchers::StartsWith;
inline auto Contains(const std::string& text) {
  return Matchers::ContainsSubstring(text);
}

}  // namespace Catch
