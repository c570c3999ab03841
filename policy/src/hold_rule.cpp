#include "freeride/policy/hold_rule.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "freeride/policy/probe.hpp"

namespace freeride::policy {
namespace {

template <class Number>
std::string text_of_number(Number number) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), number).ptr};
}

// Words of a line, one after the other.
class Words {
 public:
  explicit Words(std::string_view text) : rest_(text) {}

  std::string_view next() {
    const size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  template <class Number>
  std::optional<Number> number() {
    const std::string_view word = next();
    Number value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (word.empty() || error != std::errc() || end != word.data() + word.size()) return std::nullopt;
    return value;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

bool is_share(const std::optional<double>& pct) {
  return pct && *pct >= 0 && *pct <= 100;
}

}  // namespace

bool is_held(const HoldRule& rule, uint64_t iteration) {
  if (rule.kind != HoldRule::Kind::kPlanned) return rule.kind == HoldRule::Kind::kAlways;
  const auto plan = std::find_if(rule.plans.rbegin(), rule.plans.rend(),
                                 [&](const HoldoutPlan& one) { return one.from_iteration <= iteration; });
  if (plan == rule.plans.rend()) return true;
  const bool baseline = is_held_out(*plan, iteration);
  if (!baseline && is_on_duty(*plan, iteration)) return true;
  return is_probed(plan->seed, iteration, baseline ? rule.baseline_one_in : rule.off_duty_one_in);
}

std::string text_of(const HoldRule& rule) {
  if (rule.kind == HoldRule::Kind::kNever) return "never";
  if (rule.kind == HoldRule::Kind::kAlways) return "always";
  const size_t count = std::min(rule.plans.size(), HoldRule::kMostPlans);
  std::string text = "planned " + text_of_number(rule.baseline_one_in) + " " + text_of_number(rule.off_duty_one_in) +
                     " " + text_of_number(count);
  for (auto plan = rule.plans.end() - static_cast<std::ptrdiff_t>(count); plan != rule.plans.end(); ++plan) {
    text += " " + text_of_number(plan->seed) + " " + text_of_number(plan->block_iterations) + " " +
            text_of_number(plan->from_iteration) + " " + text_of_number(plan->share_pct) + " " +
            text_of_number(plan->duty_pct);
  }
  return text + " " + (rule.plans.empty() ? "" : rule.plans.back().job);  // last, for it may have spaces
}

Result<HoldRule> parse_hold_rule(std::string_view text) {
  HoldRule rule;
  if (text == "never") return rule;
  if (text == "always") {
    rule.kind = HoldRule::Kind::kAlways;
    return rule;
  }
  const Error bad{Code::kInvalidArgument, "no hold rule: " + std::string(text.substr(0, 80)), ""};
  Words words(text);
  if (words.next() != "planned") return bad;
  rule.kind = HoldRule::Kind::kPlanned;
  const auto baseline = words.number<uint32_t>();
  const auto off_duty = words.number<uint32_t>();
  const auto count = words.number<size_t>();
  if (!baseline || !off_duty || !count || *count > HoldRule::kMostPlans) return bad;
  rule.baseline_one_in = *baseline;
  rule.off_duty_one_in = *off_duty;
  for (size_t i = 0; i < *count; ++i) {
    const auto seed = words.number<uint64_t>();
    const auto block = words.number<uint64_t>();
    const auto from = words.number<uint64_t>();
    const auto share = words.number<double>();
    const auto duty = words.number<double>();
    if (!seed || !block || !from || !is_share(share) || !is_share(duty)) return bad;
    rule.plans.push_back({"", *seed, *block, *from, *share, *duty});
  }
  for (HoldoutPlan& plan : rule.plans) plan.job = words.rest();
  return rule;
}

}  // namespace freeride::policy
