#include "batch_ledger.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <tuple>

namespace freeride::manager {
namespace {

constexpr uint64_t kMostItems = uint64_t{1} << 40;
constexpr uint64_t kParts = 8;  // that a suspected range is split into

}  // namespace

BatchLedger::BatchLedger(uint64_t items, uint32_t tries) : items_(items), tries_(std::max(tries, 1U)) {
  open(0, items);
}

uint64_t BatchLedger::not_given() const {
  uint64_t sum = 0;
  for (const auto& [first, end] : open_) sum += end - first;
  for (const auto& [first, count] : suspected_) sum += count;
  return sum;
}

uint64_t BatchLedger::left() const {
  uint64_t sum = not_given();
  for (const auto& [number, given] : given_) sum += given.count - given.done;
  return sum;
}

// Joined with its neighbours, so that what comes back leaves no more ranges than there were.
void BatchLedger::open(uint64_t first, uint64_t count) {
  if (count == 0) return;
  uint64_t end = first + count;
  auto next = open_.lower_bound(first);
  if (next != open_.end() && next->first == end) {
    end = next->second;
    next = open_.erase(next);
  }
  if (next != open_.begin()) {
    const auto before = std::prev(next);
    if (before->second == first) {
      before->second = end;
      return;
    }
  }
  open_[first] = end;
}

void BatchLedger::suspect(uint64_t first, uint64_t count) {
  const uint64_t part = std::max<uint64_t>(1, (count + kParts - 1) / kParts);
  for (uint64_t at = 0; at < count; at += part) suspected_.emplace_back(first + at, std::min(part, count - at));
}

std::optional<BatchLedger::Given> BatchLedger::hand_out(int64_t member, uint64_t most) {
  Given given;
  given.member = member;
  if (!suspected_.empty()) {
    std::tie(given.first, given.count) = suspected_.front();
    suspected_.pop_front();
  } else if (!open_.empty()) {
    const auto [first, end] = *open_.begin();
    given.first = first;
    given.count = std::min(std::max<uint64_t>(most, 1), end - first);
    open_.erase(open_.begin());
    if (first + given.count < end) open_[first + given.count] = end;
  } else {
    return std::nullopt;
  }
  given.number = next_number_++;
  given_[given.number] = given;
  return given;
}

std::vector<BatchLedger::Given> BatchLedger::given_to(int64_t member) const {
  std::vector<Given> found;
  for (const auto& [number, given] : given_) {
    if (given.member == member) found.push_back(given);
  }
  return found;
}

std::vector<int64_t> BatchLedger::holders() const {
  std::vector<int64_t> found;
  for (const auto& [number, given] : given_) found.push_back(given.member);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// It begins with a range only after all of those before are on disk.
void BatchLedger::finish_before(int64_t member, uint64_t number) {
  std::erase_if(given_, [&](const auto& one) { return one.second.member == member && one.first < number; });
}

uint64_t BatchLedger::report(int64_t member, uint64_t number, uint64_t done) {
  const auto found = given_.find(number);
  if (found == given_.end() || found->second.member != member) return 0;
  const uint64_t before = left();
  Given& given = found->second;
  given.done = std::max(given.done, std::min(done, given.count));
  if (given.done == given.count) given_.erase(found);
  finish_before(member, number);
  const uint64_t more = before - left();
  if (more > 0) barren_ends_ = 0;
  return more;
}

void BatchLedger::lose(int64_t member) {
  for (const Given& given : given_to(member)) {
    given_.erase(given.number);
    open(given.first + given.done, given.count - given.done);
  }
}

BatchLedger::Blame BatchLedger::fail(int64_t member, const Doing& doing, const std::string& reason) {
  ++barren_ends_;
  ++crashes_;
  const auto found = given_.find(doing.number);
  const bool begun = found != given_.end() && found->second.member == member && doing.count > 0 &&
                     doing.offset >= found->second.done && doing.offset < found->second.count &&
                     doing.count <= found->second.count - doing.offset;
  if (!begun) {
    lose(member);
    return Blame::kPlugin;
  }
  // What it has not said to be on disk is done again, ranges before this one included.
  const Given given = found->second;
  given_.erase(found);
  const uint64_t first = given.first + doing.offset, end = given.first + given.count;
  open(given.first + given.done, doing.offset - given.done);
  open(first + doing.count, end - first - doing.count);
  lose(member);
  if (doing.count > 1) {
    suspect(first, doing.count);
  } else if (const uint32_t ends = ++ends_[first]; ends >= tries_) {
    ends_.erase(first);
    failures_[first] = {ends, reason};
  } else {
    suspected_.emplace_back(first, 1);
  }
  return Blame::kItems;
}

// A line for each thing; a failure's reason is the rest of its line.
std::string BatchLedger::encode() const {
  std::ostringstream out;
  out << "ledger " << items_ << ' ' << tries_ << ' ' << barren_ends_ << ' ' << crashes_ << ' ' << next_number_ << '\n';
  for (const auto& [first, end] : open_) out << "open " << first << ' ' << end - first << '\n';
  for (const auto& [first, count] : suspected_) out << "suspected " << first << ' ' << count << '\n';
  for (const auto& [item, ends] : ends_) out << "ends " << item << ' ' << ends << '\n';
  for (const auto& [number, given] : given_) {
    out << "given " << number << ' ' << given.first << ' ' << given.count << ' ' << given.done << ' ' << given.member
        << '\n';
  }
  for (const auto& [item, failure] : failures_) {
    std::string reason = failure.reason;
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    out << "failed " << item << ' ' << failure.tries << ' ' << reason << '\n';
  }
  return out.str();
}

Result<BatchLedger> BatchLedger::decode(std::string_view text) {
  const Error damaged{Code::kInvalidArgument, "the ledger of a batch cannot be read", ""};
  std::istringstream in{std::string(text)};
  BatchLedger ledger;
  std::string line, word;
  bool good = static_cast<bool>(in >> word >> ledger.items_ >> ledger.tries_ >> ledger.barren_ends_ >>
                                ledger.crashes_ >> ledger.next_number_) &&
              word == "ledger" && ledger.items_ <= kMostItems;
  std::getline(in, line);
  const auto within = [&](uint64_t first, uint64_t count) {
    return count > 0 && first < ledger.items_ && count <= ledger.items_ - first;
  };
  while (good && std::getline(in, line)) {
    std::istringstream words(line);
    uint64_t first = 0, count = 0;
    words >> word >> first >> count;
    if (word == "open" && within(first, count)) {
      ledger.open(first, count);
    } else if (word == "suspected" && within(first, count)) {
      ledger.suspected_.emplace_back(first, count);
    } else if (word == "ends" && within(first, 1)) {
      ledger.ends_[first] = static_cast<uint32_t>(count);
    } else if (word == "given") {
      Given given{first, count};
      good = static_cast<bool>(words >> given.count >> given.done >> given.member) &&
             within(given.first, given.count) && given.done < given.count && given.number < ledger.next_number_;
      ledger.given_[given.number] = given;
    } else if (word == "failed" && within(first, 1)) {
      Failure failure{static_cast<uint32_t>(count), {}};
      words.ignore(1);
      std::getline(words, failure.reason);
      ledger.failures_[first] = std::move(failure);
    } else {
      good = false;
    }
    good = good && !words.bad();
  }
  if (!good || ledger.left() + ledger.failures_.size() > ledger.items_) return damaged;
  return ledger;
}

}  // namespace freeride::manager
