// The checks on the CPU backend: nothing is found where nothing is wrong, and single flipped bits are.
#include "canary/checks.hpp"

#include <catch2/catch.hpp>
#include <set>

using canary::Check;
using canary::Flip;
using canary::Pattern;

namespace {

std::unique_ptr<canary::Backend> opened(uint64_t bytes = 256u << 10) {
  auto backend = canary::make_backend({});
  backend->open(bytes);
  return backend;
}

constexpr int kTrials = 1000;

}  // namespace

TEST_CASE("the sums are those of the product") {
  const uint64_t seed = GENERATE(1, 2, 77);
  const canary::Sums sums = canary::expected_sums(seed);
  for (unsigned i = 0; i < canary::kEdge; ++i) {
    int64_t row = 0, column = 0;
    for (unsigned j = 0; j < canary::kEdge; ++j) {
      for (unsigned k = 0; k < canary::kEdge; ++k) {
        row += canary::element_of(seed, 0, i, k) * canary::element_of(seed, 1, k, j);
        column += canary::element_of(seed, 0, j, k) * canary::element_of(seed, 1, k, i);
      }
    }
    REQUIRE(sums.row[i] == row);
    REQUIRE(sums.column[i] == column);
  }
}

TEST_CASE("elements are whole, not zero, and small enough for every kind of number") {
  std::set<int> seen;
  for (unsigned i = 0; i < canary::kEdge; ++i) {
    for (unsigned j = 0; j < canary::kEdge; ++j) seen.insert(canary::element_of(9, 1, i, j));
  }
  CHECK(seen.size() == 16);
  CHECK(seen.count(0) == 0);
  CHECK((*seen.begin() == -8 && *seen.rbegin() == 8));
}

TEST_CASE("where nothing is wrong nothing is found") {
  const auto backend = opened();
  for (uint64_t round = 0; round < 60; ++round) {
    for (const Check check : canary::kProducts) {
      if (!backend->has(check)) continue;
      const auto report = backend->product(check, round, std::nullopt);
      REQUIRE(report.wrong == 0);
      REQUIRE(report.ns > 0);
    }
    const auto pattern = static_cast<Pattern>(round % canary::kPatterns);
    for (uint64_t part = 0; part < backend->parts(); ++part) backend->write(part, pattern, round);
    for (uint64_t part = 0; part < backend->parts(); ++part) REQUIRE(backend->read(part, pattern, round).wrong == 0);
    CHECK(backend->move(round % backend->parts()));
  }
}

TEST_CASE("of 1000 flipped bits of products at least 99 % are found") {
  const Check check = GENERATE(Check::kInteger, Check::kFloat, Check::kDouble);
  const auto backend = opened();
  int found = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const uint64_t random = canary::mixed(static_cast<uint64_t>(trial));
    const auto report =
        backend->product(check, random, Flip{random >> 8, static_cast<unsigned>(canary::mixed(random))});
    found += report.wrong > 0 ? 1 : 0;
  }
  INFO(canary::name_of(check) << ": " << found << " of " << kTrials);
  CHECK(found >= kTrials * 99 / 100);
}

TEST_CASE("of 1000 flipped bits of memory all are found, where they are") {
  const auto backend = opened();
  for (int trial = 0; trial < kTrials; ++trial) {
    const uint64_t random = canary::mixed(static_cast<uint64_t>(trial)), part = random % backend->parts();
    const auto pattern = static_cast<Pattern>(trial % canary::kPatterns);
    const Flip flip{random >> 8, static_cast<unsigned>(canary::mixed(random) % 64)};
    backend->write(part, pattern, random);
    backend->flip(part, flip);
    const auto report = backend->read(part, pattern, random);
    REQUIRE(report.wrong == 1);
    REQUIRE(report.first.front().at == part * backend->part_words() + flip.at % backend->part_words());
    REQUIRE((report.first.front().got ^ report.first.front().wanted) == uint64_t{1} << flip.bit);
  }
}

TEST_CASE("what is told names the place") {
  const auto backend = opened();
  const auto product = backend->product(Check::kInteger, 5, Flip{3 * canary::kEdge + 9, 2});
  REQUIRE(product.wrong == 2);
  const std::string text = canary::text_of(Check::kInteger, product);
  CHECK(text.find("integer product: 2 wrong, row 3, column 9: its sum is ") == 0);
  const auto fraction = backend->product(Check::kFloat, 5, Flip{70, 0});
  CHECK(canary::text_of(Check::kFloat, fraction).find("row 1, column 6: it has the bits 0x") != std::string::npos);
  backend->write(0, Pattern::kRandom, 1);
  backend->flip(0, {12, 63});
  CHECK(canary::text_of(Check::kRead, backend->read(0, Pattern::kRandom, 1)).find("word 12: 0x") != std::string::npos);
}
