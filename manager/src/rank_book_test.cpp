#include "rank_book.hpp"

#include <catch2/catch.hpp>

#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {

std::vector<bus::RankInfo> ranks_of(House& house, const std::string& job = {}) {
  house.core->list_ranks(++house.tickets, job);
  return std::get<bus::RanksReply>(*house.answer_of(house.tickets)).ranks;
}

bus::TrainingState rank_at(const std::string& worker, uint32_t number, const std::string& state = "active") {
  bus::TrainingState rank;
  rank.job = "gpt";
  rank.rank = number;
  rank.worker = worker;
  rank.state = state;
  rank.why = state == "gone" ? "ended" : state == "lost" ? "died" : "usable";
  return rank;
}

}  // namespace

TEST_CASE("the manager answers with each rank's reason, and says so of one whose worker is lost") {
  House house;
  FakeWorker first("h1:cpu-0", 0), second("h2:cpu-0", 1), other("h3:cpu-0", 0);
  first.why = "harvesting";
  second.why = "no_task";
  second.host = "far";
  other.job = "bert";
  for (auto* worker : {&first, &second, &other}) house.join(*worker);
  auto ranks = ranks_of(house, "gpt");
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0].state.why == "harvesting");
  CHECK(ranks[1].state.why == "no_task");
  CHECK(ranks[1].host == "far");
  CHECK(ranks_of(house).size() == 3);
  CHECK(ranks_of(house, "no such").empty());
  CHECK(ranks_of(house, "bert").at(0).state.why.empty());  // its worker is of an earlier version

  house.pass(60, {&first, &other});
  ranks = ranks_of(house, "gpt");
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0].state.state == "active");
  CHECK(ranks[1].state.state == "lost");
  CHECK(ranks[1].state.why == "worker_lost");
  CHECK(ranks[1].silent_ms >= 59'000);
  house.pass(2, {&first, &second, &other});
  CHECK(ranks_of(house, "gpt").at(1).state.why == "no_task");
}

TEST_CASE("a rank that has left one place for another in one report is there") {
  House house;
  FakeWorker worker("h1:cpu-0", 0);
  worker.why = "usable";
  house.join(worker);
  auto report = house.report_of(worker);
  report.ranks.push_back(report.ranks[0]);
  report.ranks.back().state = "gone";
  CHECK(house.send(worker, report).ok());
  CHECK(ranks_of(house).at(0).state.state == "active");
}

TEST_CASE("a rank that its worker names no more is lost; what ended is forgotten with its job") {
  RankBook book;
  book.see(rank_at("a", 0), "h", 1);
  book.see(rank_at("a", 1), "h", 1);
  book.lose(rank_at("a", 0), 2);
  book.see(rank_at("a", 1, "gone"), "h", 2);
  CHECK(book.list("gpt", 2).at(0).state.why == "worker_lost");
  CHECK(book.list("gpt", 2).at(1).state.why == "ended");
  book.forget_old(3);
  CHECK(book.list({}, 3).size() == 2);
  book.see(rank_at("a", 0), "h", 4);
  book.see(rank_at("a", 0, "gone"), "h", 5);
  book.forget_old(6);
  CHECK(book.list({}, 6).empty());
  book.see(rank_at("a", 0), "h", 7);
  book.see(rank_at("a", 0, "lost"), "h", 8);
  book.forget_old(8 + RankBook::kForgetAfterNs);
  CHECK(book.list({}, 8).at(0).state.why == "died");
  book.forget_old(9 + RankBook::kForgetAfterNs);
  CHECK(book.list({}, 9).empty());
}

TEST_CASE("what an earlier worker says of a rank's end does not count for the place where it is now") {
  RankBook book;
  book.see(rank_at("a", 0), "h", 1);
  book.see(rank_at("b", 0), "g", 2);
  book.see(rank_at("a", 0, "lost"), "h", 3);
  book.lose(rank_at("a", 0), 3);
  const auto ranks = book.list({}, 3);
  REQUIRE(ranks.size() == 1);
  CHECK(ranks[0].state.state == "active");
  CHECK(ranks[0].host == "g");
}

TEST_CASE("ranks that are away are bounded, and texts are") {
  RankBook book;
  auto liar = rank_at("a", 0);
  liar.why.assign(100'000, 'x');
  book.see(liar, "h", 1);
  CHECK(book.list({}, 1).at(0).state.why.size() <= 64);
  for (uint32_t number = 1; number <= RankBook::kMostAway + 10; ++number) {
    book.see(rank_at("a", number), "h", number);
    book.lose(rank_at("a", number), number);
  }
  const auto ranks = book.list({}, 1);
  CHECK(ranks.size() == RankBook::kMostAway + 1);
  CHECK(ranks[0].state.rank == 0);  // it is there
  CHECK(ranks[1].state.rank == 11);
}
