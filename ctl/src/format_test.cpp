#include "format.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>

using namespace freeride::ctl;  // NOLINT(google-build-using-namespace)

TEST_CASE("durations") {
  CHECK(human_ns(0) == "0");
  CHECK(human_ns(850) == "850 ns");
  CHECK(human_ns(12'345) == "12.3 µs");
  CHECK(human_ns(999'499) == "999 µs");
  CHECK(human_ns(999'600) == "1.00 ms");
  CHECK(human_ns(4'560'000) == "4.56 ms");
  CHECK(human_ns(12'300'000'000) == "12.3 s");
  CHECK(human_ns(245'000'000'000) == "4 min 05 s");
  CHECK(human_ns(10'930'000'000'000) == "3 h 02 min");
  CHECK(human_ns(-4'560'000) == "-4.56 ms");
  CHECK(human_ns(INT64_MIN).front() == '-');
}

TEST_CASE("sizes, shares and counts") {
  CHECK(human_bytes(0) == "-");
  CHECK(human_bytes(512) == "512 B");
  CHECK(human_bytes(1536) == "1.5 KiB");
  CHECK(human_bytes(24LL << 30) == "24.0 GiB");
  CHECK(human_bytes(INT64_MAX).find("TiB") != std::string::npos);
  CHECK(human_pct(27.14) == "27.1 %");
  CHECK(human_signed_pct(0.123) == "+0.12 %");
  CHECK(human_signed_pct(-1.5) == "-1.50 %");
  CHECK(human_set_pct(0.25) == "0.25 %");
  CHECK(human_set_pct(1) == "1 %");
  CHECK(human_count(0) == "0");
  CHECK(human_count(999) == "999");
  CHECK(human_count(1'234'567) == "1 234 567");
}

TEST_CASE("nothing that a task says can move the cursor") {
  CHECK(printable("plain µ") == "plain µ");
  CHECK(printable("a\x1b[2Jb\r\n") == "a?[2Jb??");
  CHECK(printable("a\x1b[2Jb\n\tc", true) == "a?[2Jb\n\tc");
  CHECK(printable("\xC2\x9B"
                  "31m") == "?31m");
  CHECK(printable("\xff\xc3") == "??");
  CHECK(printable("\xc3(") == "?(");
  CHECK(printable("\xed\xa0\x80 \xe0\x80\xaf \xf4\x90\x80\x80") == "??? ??? ????");  // as strict as the bus
}

TEST_CASE("what is left at a pace is told where there is one, and fits whatever was said") {
  CHECK(human_left(750, 25) == "30.0 s");
  CHECK(human_left(0, 25).empty());
  for (const double pace : {0.0, -1.0, std::nan(""), HUGE_VAL}) CHECK(human_left(10, pace).empty());
  CHECK(human_left(UINT64_MAX, 1e-300) == human_ns(100'000'000'000'000'000));
}

TEST_CASE("bars") {
  CHECK(bar(0.5, 4, true) == "##..");
  CHECK(bar(0, 3, true) == "...");
  CHECK(bar(7, 3, true) == "###");
  CHECK(bar(-1, 3, true) == "...");
  CHECK(bar(std::nan(""), 3, true) == "...");
  CHECK(bar(0.5, 2, false) == "█░");
}

TEST_CASE("tables align by what is seen, not by bytes") {
  Table table({"NAME", ">STEP", "WHY"});
  table.add({"a", "1.5 µs", "first"});
  table.add({"long name", "12 ms", "\x1b[31m"});
  table.add({"short row"});
  CHECK(table.text() ==
        "NAME         STEP  WHY\n"
        "a          1.5 µs  first\n"
        "long name   12 ms  ?[31m\n"
        "short row\n");
}

TEST_CASE("lines are cut to the terminal") {
  CHECK(cut("µµµµ", 4) == "µµµµ");
  CHECK(cut("µµµµµ", 4) == "µµµ…");
  CHECK(cut("anything", 0) == "anything");
  Table table({"A", "B"});
  table.add({"12345", "67890"});
  CHECK(table.text(8) == "A      B\n12345  …\n");
}

TEST_CASE("csv has raw values, names with units, and no formulas") {
  Table table({"NAME", {">MEMORY", "memory_bytes"}, "WHY"});
  table.add({"a,b", bytes_cell(1536), "said \"no\"\n"});
  table.add({"=1+1", {"-", ""}, "-3.5e2"});
  CHECK(table.csv() ==
        "name,memory_bytes,why\n"
        "\"a,b\",1536,\"said \"\"no\"\"?\"\n"
        "'=1+1,,-3.5e2\n");
}

TEST_CASE("columns are chosen by name or heading, and a wrong one is told with those there are") {
  Table table({"NAME", {">MEMORY", "memory_bytes"}, "WHY"});
  table.add({"a", bytes_cell(1536), "because"});
  REQUIRE(table.choose("why,memory,name").ok());
  CHECK(table.csv() == "why,memory_bytes,name\nbecause,1536,a\n");
  REQUIRE(table.choose("memory_bytes").ok());
  CHECK(table.text() == " MEMORY\n1.5 KiB\n");
  const auto wrong = table.choose("name");
  REQUIRE_FALSE(wrong.ok());
  CHECK(wrong.error().text().find("memory_bytes") != std::string::npos);
  CHECK_FALSE(table.choose("").ok());
  CHECK_FALSE(table.choose("memory,").ok());
}

TEST_CASE("a narrow table leaves out what can be spared, colours do not move columns") {
  Table table({"A", {"B", "", 1}, {"C", "", 2}, "WHY"});
  table.add({"11111", "22222", "33333", {"a long reason", "", Tone::kBad}});
  CHECK(table.text(40).find("33333") != std::string::npos);
  CHECK(table.text(30).find("33333") == std::string::npos);
  CHECK(table.text(30).find("22222") != std::string::npos);
  CHECK(table.text(20) == "A      WHY\n11111  a long reason\n");
  CHECK(table.text(20, true) == "\x1b[1mA\x1b[0m      \x1b[1mWHY\x1b[0m\n11111  \x1b[31ma long reason\x1b[0m\n");
}
