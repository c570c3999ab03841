#include "factors.hpp"

#include <algorithm>

namespace sgd {
namespace {

// Products in one piece: some 20 µs of work.
constexpr uint64_t kPiece = 16384;

class CpuBackend final : public FactorBackend {
 public:
  void begin(const Ratings& ratings, const Settings& settings) override {
    ratings_ = &ratings;
    settings_ = settings;
    for (const auto side : {Side::kFrom, Side::kTo}) {
      auto& values = of(side);
      values.resize(size_t{ratings.vertices} * settings.factors);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = first_factor(settings.seed, side, i / settings.factors, static_cast<unsigned>(i % settings.factors),
                                 settings.factors);
      }
    }
    restart();
  }

  bool advance(float learning_rate) override {
    const unsigned n = settings_.factors;
    const auto& edges = ratings_->edges;
    const uint64_t until = std::min<uint64_t>(edges.size(), at_ + kPiece / n);
    visited_ += until - at_;
    for (; at_ < until; ++at_) {
      float* p = from_.data() + size_t{edges[at_].from} * n;
      float* q = to_.data() + size_t{edges[at_].to} * n;
      float product = 0;
      for (unsigned i = 0; i < n; ++i) product += p[i] * q[i];
      const float error = ratings_->ratings[at_] - settings_.mean - product;
      sum_ += double{error} * error;
      for (unsigned i = 0; i < n; ++i) {
        const float old = p[i];
        p[i] += learning_rate * (error * q[i] - settings_.regularisation * old);
        q[i] += learning_rate * (error * old - settings_.regularisation * q[i]);
      }
    }
    if (at_ < edges.size()) return false;
    squared_error_ = sum_;
    restart();
    return true;
  }

  double squared_error() const override { return squared_error_; }
  uint64_t visited() const override { return visited_; }

  void read(Side side, uint64_t first, uint64_t count, float* factors) override {
    std::copy_n(of(side).data() + first * settings_.factors, count * settings_.factors, factors);
  }
  void write(Side side, const float* factors) override {
    auto& values = of(side);
    std::copy_n(factors, values.size(), values.data());
    restart();
  }

  void release() override {
    from_ = {};
    to_ = {};
  }

 private:
  std::vector<float>& of(Side side) { return side == Side::kFrom ? from_ : to_; }
  void restart() {
    at_ = 0;
    sum_ = 0;
  }

  const Ratings* ratings_ = nullptr;
  Settings settings_;
  std::vector<float> from_;
  std::vector<float> to_;
  uint64_t at_ = 0;
  double sum_ = 0;
  double squared_error_ = 0;
  uint64_t visited_ = 0;
};

}  // namespace

std::unique_ptr<FactorBackend> make_backend(const common::Setup& setup) {
  if constexpr (common::kHasCuda) {
    if (setup.backend == common::Backend::kCuda) return make_cuda_backend(setup.step_ms, setup.spin);
  }
  return std::make_unique<CpuBackend>();
}

}  // namespace sgd
