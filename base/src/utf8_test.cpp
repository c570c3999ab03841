#include "freeride/base/utf8.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace freeride;

TEST_CASE("text that one side takes for UTF-8 is UTF-8 for the other") {
  const std::pair<const char*, size_t> cases[] = {
      {"a", 1},
      {"\xc2\x80", 2},
      {"\xdf\xbf", 2},
      {"\xe0\xa0\x80", 3},
      {"\xed\x9f\xbf", 3},
      {"\xee\x80\x80", 3},
      {"\xf0\x90\x80\x80", 4},
      {"\xf4\x8f\xbf\xbf", 4},
      {"\x80", 0},              // goes on with nothing
      {"\xc0\xaf", 0},          // overlong
      {"\xc1\xbf", 0},          // overlong
      {"\xe0\x9f\xbf", 0},      // overlong
      {"\xf0\x8f\xbf\xbf", 0},  // overlong
      {"\xed\xa0\x80", 0},      // a surrogate
      {"\xed\xbf\xbf", 0},      // a surrogate
      {"\xf4\x90\x80\x80", 0},  // past U+10FFFF
      {"\xf5\x80\x80\x80", 0},  // past U+10FFFF
      {"\xe2\x82", 0},          // cut
      {"\xe2\x82z", 0},
  };
  for (const auto& [text, length] : cases) {
    CAPTURE(text, length);
    CHECK(utf8_length(text) == length);
    CHECK(utf8_length(std::string(text) + "rest") == length);
    CHECK(is_utf8(text) == (length != 0));
    CHECK(is_utf8("12345678" + std::string(text)) == (length != 0));
    CHECK(is_utf8(clean_utf8(text)));
    CHECK((clean_utf8(text) == text) == (length != 0));
  }
  CHECK(utf8_length("") == 0);
  CHECK(is_utf8(""));
}

TEST_CASE("text is cut between characters") {
  const std::string text =
      "a\xe2\x82\xac"
      "b";  // a, the Euro sign, b
  CHECK(bounded(text, 5) == text);
  CHECK(bounded(text, 4) == "a\xe2\x82\xac");
  CHECK(bounded(text, 3) == "a");
  CHECK(bounded(text, 2) == "a");
  CHECK(bounded(text, 0).empty());
  CHECK(tail(text, 5) == text);
  CHECK(tail(text, 4) ==
        "\xe2\x82\xac"
        "b");
  CHECK(tail(text, 3) == "b");
  CHECK(tail(text, 0).empty());
  CHECK(in_quotes("x") == "'x'");
  CHECK(is_utf8(in_quotes(std::string(79, 'x') + "\xe2\x82\xac")));
}
