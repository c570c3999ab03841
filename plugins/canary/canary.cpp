// Side task: checks the device itself. docs/canary.md says what it finds, and what becomes of it.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "canary/checks.hpp"
#include "canary/device_facts.hpp"
#include "canary/speed.hpp"
#include "common/backend.hpp"
#include "freeride/plugin.hpp"

namespace canary {
namespace {

constexpr unsigned kPiecesOfEach = 4;     // products of each kind in a round
constexpr uint64_t kMostFindings = 1000;  // lines of the file

class Canary : public freeride::SideTask, public freeride::KeepsState {
  freeride::Param<uint64_t> memory_mib_{
      this, "memory_mib", 0, "of memory that is checked; 0: what the device's caches do not hold", {0, 65536}};
  freeride::Param<uint64_t> rounds_{this, "rounds", 0, "finish after so many rounds of all checks; 0: go on"};
  freeride::Param<double> ask_s_{this, "ask_s", 60, "ask the driver for memory errors so often, s", {1, 86400}};
  freeride::Param<uint64_t> seed_{this, "seed", 1, "of all values"};
  freeride::Param<uint64_t> inject_{
      this, "inject", 0, "for tests: flip so many single bits, one at a time, and finish", {0, 1000000000}};
  common::Computing computing_{this};

  void CreateSideTask() override {
    setup_ = computing_.on(device());
    backend_ = make_backend(setup_);
  }

  void InitSideTask() override {
    backend_->open(memory_mib_ << 20);
    ask_for_facts();
    for (const char* name : {"alarm.wrong", "alarm.slow", "alarm.ecc", "rounds"}) metric(name, 0);
    log("checks " + subject() + ": " + std::to_string((backend_->parts() * backend_->part_words()) >> 17) +
        " MiB of memory, " + (backend_->has(Check::kTensor) ? "four" : "three") + " kinds of products");
  }

  freeride::Step RunNextStep() override {
    const auto step = computing_.step([this] { return inject_ > 0 ? advance_trial() : advance(); });
    if (step == freeride::Step::kMore && facts_ && now() >= ask_at_) {
      yield_point();  // what the driver takes is not what a step takes: it is a piece of its own
      look_at_facts();
    }
    return step;
  }

  void StopSideTask() override { backend_->release(); }

  std::string SaveState() override {
    const Saved saved{round_, seed_, backend_->part_words(), device().size()};
    std::string state(reinterpret_cast<const char*>(&saved), sizeof(saved));
    state += device();
    for (const SpeedHistory& history : histories_) {
      const std::string one = history.save();
      const uint64_t size = one.size();
      state.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(one);
    }
    return state;
  }

  void RestoreState(uint32_t version, const std::string& state) override {
    Saved saved{};
    const bool header = version == kStateVersion && state.size() >= sizeof(saved);
    if (header) std::memcpy(&saved, state.data(), sizeof(saved));
    if (!header || saved.device_bytes > state.size() - sizeof(saved))
      throw freeride::TaskError("the saved state is of another version of canary");
    round_ = saved.round;
    // Another device's history says nothing of this one, and neither does that of pieces of another size.
    if (state.compare(sizeof(saved), saved.device_bytes, device()) != 0 || saved.part_words != backend_->part_words())
      return log("the history is of another device or size of memory: it begins anew");
    size_t at = sizeof(saved) + saved.device_bytes;
    for (SpeedHistory& history : histories_) {
      uint64_t size = 0;
      if (state.size() - at < sizeof(size)) return;
      std::memcpy(&size, state.data() + at, sizeof(size));
      at += sizeof(size);
      if (state.size() - at < size || !history.restore(state.substr(at, size))) return;
      at += size;
    }
  }

  struct Saved {
    uint64_t round, seed, part_words, device_bytes;
  };

  // ---- a round: products of each kind, then memory is written, and read when all of it has been written
  // True when the task is done.
  bool advance() {
    const uint64_t products = kProducts.size() * kPiecesOfEach, parts = backend_->parts();
    const uint64_t piece = piece_++;
    if (piece < products) {
      const Check check = kProducts[piece % kProducts.size()];
      if (backend_->has(check)) take(check, backend_->product(check, seed_of_round(), std::nullopt));
    } else if (piece < products + parts) {
      take(Check::kWrite, backend_->write(piece - products, pattern(), seed_of_round()));
    } else if (piece < products + 2 * parts) {
      take(Check::kRead, backend_->read(piece - products - parts, pattern(), seed_of_round()));
    } else {
      if (!backend_->move(round_ % parts)) log("no other memory to be had: the same is checked again");
      return end_round();
    }
    return false;
  }

  bool end_round() {
    piece_ = 0;
    metric("rounds", static_cast<double>(++round_));
    const double read_ns = history(Check::kRead).recent_ns();
    if (read_ns > 0) metric("gb_s", static_cast<double>(backend_->part_words() * sizeof(uint64_t)) / read_ns);
    const double float_ns = history(Check::kFloat).recent_ns();
    if (float_ns > 0) metric("gflop_s", backend_->operations() / float_ns);
    if (clock_mhz_ > 0) metric("sm_mhz", clock_mhz_);
    return rounds_ > 0 && round_ >= rounds_;
  }

  uint64_t seed_of_round() const { return mixed(seed_ + round_); }
  Pattern pattern() const { return static_cast<Pattern>(round_ % kPatterns); }
  SpeedHistory& history(Check check) { return histories_[static_cast<size_t>(check)]; }

  void take(Check check, const Report& report) {
    if (report.clock_mhz > 0) clock_mhz_ = report.clock_mhz;
    if (report.wrong > 0) return tell_wrong(check, report);
    switch (history(check).note(report.ns)) {
      case SpeedHistory::News::kNone:
        break;
      case SpeedHistory::News::kSlow:
        tell_slow(check);
        break;
      case SpeedHistory::News::kNormal:
        log(subject() + " is as fast as before: " + speed_text(check));
    }
  }

  // ---- for tests: single bits are flipped
  bool advance_trial() {
    const uint64_t random = mixed(seed_ + 2 * trials_), other = mixed(random);
    const Flip flip{random >> 8, static_cast<unsigned>(other >> 8)};
    const Check check = trials_ % 2 == 1 ? Check::kRead : kProducts[trials_ / 2 % kProducts.size()];
    if (check == Check::kRead) {
      const uint64_t part = other % backend_->parts();
      const auto pattern = static_cast<Pattern>(trials_ / 2 % kPatterns);
      backend_->write(part, pattern, random);
      backend_->flip(part, flip);
      count_trial(check, backend_->read(part, pattern, random));
    } else {
      count_trial(check, backend_->product(backend_->has(check) ? check : Check::kFloat, random >> 20, flip));
    }
    return ++trials_ >= inject_;
  }

  void count_trial(Check check, const Report& report) {
    metric("injected", static_cast<double>(trials_ + 1));
    if (report.wrong > 0) tell_wrong(check, report);
  }

  // ---- what an operator is told
  void tell_wrong(Check check, const Report& report) {
    metric("alarm.wrong", static_cast<double>(++wrong_));
    tell("WRONG", subject() + ": " + text_of(check, report));
  }

  void tell_slow(Check check) {
    metric("alarm.slow", static_cast<double>(++slow_));
    tell("SLOW", subject() + ": " + speed_text(check) + clock_text());
  }

  void tell(const char* kind, const std::string& text) {
    const uint64_t told = ++findings_;
    if (told > kMostFindings) return;
    warn(std::string(kind) + ": " + text);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(scratch_path("findings.txt").c_str(), "ae"),
                                                               &std::fclose);
    if (file) std::fprintf(file.get(), "%s %s\n", kind, text.c_str());
    if (told == kMostFindings)
      warn("more than " + std::to_string(kMostFindings) + " findings: further ones are counted");
  }

  std::string speed_text(Check check) {
    const SpeedHistory& known = history(check);
    const auto us = [](double ns) { return std::to_string(std::llround(ns / 1e3)) + " us"; };
    return std::string(name_of(check)) + " takes " + us(known.recent_ns()) + ", of " + std::to_string(known.pieces()) +
           " before half took " + us(known.typical_ns()) + " and 99 % at most " + us(known.limit_ns());
  }

  std::string clock_text() const {
    std::string text;
    if (clock_mhz_ > 0) text += "; multiprocessors at " + std::to_string(std::llround(clock_mhz_)) + " MHz";
    if (!last_.throttled.empty()) text += "; the driver says: " + last_.throttled;
    return text;
  }

  std::string subject() const {
    if (!facts_) return device();
    return facts_->model() + " " + device() + (facts_->serial().empty() ? "" : ", serial number " + facts_->serial());
  }

  // ---- the driver
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void ask_for_facts() {
    if (setup_.backend == common::Backend::kCpu) return;
    std::string why;
    facts_ = DeviceFacts::open(device(), why);
    if (!facts_) return log(why + ": no memory errors, serial number or clocks by the driver");
    last_ = facts_->read();
    if (!last_.uncorrected) log("the driver counts no memory errors of this GPU");
    if (last_.corrected) metric("ecc_corrected", static_cast<double>(*last_.corrected));
    ask_at_ = now() + ask_s_;
  }

  void look_at_facts() {
    const DeviceReading reading = facts_->read();
    ask_at_ = now() + ask_s_;
    if (reading.corrected) metric("ecc_corrected", static_cast<double>(*reading.corrected));
    if (reading.uncorrected && last_.uncorrected && *reading.uncorrected > *last_.uncorrected) {
      metric("alarm.ecc", static_cast<double>(++ecc_));
      tell("ECC", subject() + ": " + std::to_string(*reading.uncorrected - *last_.uncorrected) +
                      " memory errors that could not be corrected, says the driver");
    }
    last_ = reading;
  }

  common::Setup setup_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceFacts> facts_;
  DeviceReading last_;
  double ask_at_ = 0;
  std::array<SpeedHistory, kChecks> histories_;
  uint64_t round_ = 0, piece_ = 0, trials_ = 0;
  uint64_t wrong_ = 0, slow_ = 0, ecc_ = 0, findings_ = 0;
  double clock_mhz_ = 0;
};

}  // namespace
}  // namespace canary

FREERIDE_PLUGIN(canary::Canary, "canary", "0.1.0",
                "checks the device itself: products, memory, speed; tells of what is wrong or slow")
