// Side task: factorises the ratings on a graph's edges by stochastic gradient descent. docs/tasks/shipped.md lists the
// parameters.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "common/backend.hpp"
#include "factors.hpp"
#include "freeride/plugin.hpp"
#include "graph/graph.hpp"
#include "graph/graph_params.hpp"

namespace sgd {
namespace {

// Of a state, and of results where the user named no folder for them: larger factors stay unsaved.
constexpr uint64_t kMostSavedBytes = 60 << 20;
constexpr uint64_t kVerticesAtOnce = 65536;

class Sgd : public freeride::SideTask, public freeride::KeepsState {
  graph::GraphParams source_{this};
  freeride::Param<unsigned> factors_{this, "factors", 16, "of a vertex: 8, 16, 32, 64 or 128", {8, 128}};
  freeride::Param<double> learning_rate_{this, "learning_rate", 0.05, "of the first sweep", {1e-6, 10}};
  freeride::Param<double> decay_{this, "decay", 0.02, "sweep n learns with learning_rate / (1 + n decay)", {0, 10}};
  freeride::Param<double> regularisation_{this, "regularisation", 0.01, "weight of the factors' squares", {0, 10}};
  freeride::Param<uint64_t> sweeps_{this, "sweeps", 0, "over all edges, then the task has finished; 0: continue"};
  freeride::Param<std::string> output_{this, "output", "", "folder for the factors; empty: scratch, if they are small"};
  common::Computing computing_{this};

  void CreateSideTask() override {
    if (std::find(std::begin(kFactors), std::end(kFactors), factors_.get()) == std::end(kFactors))
      throw freeride::BadParameter("parameter factors=" + std::to_string(factors_) + ": must be 8, 16, 32, 64 or 128");
    const auto setup = computing_.on(device());
    backend_ = make_backend(setup);
    settings_.factors = factors_;
    settings_.seed = source_.seed();
    settings_.regularisation = static_cast<float>(regularisation_);
    if (source_.generates()) {
      rmat_ = source_.rmat();
      vertices_ = rmat_->vertices();
      edges_ = rmat_->edges();
      // On a GPU the graph is made there, at InitSideTask: it is faster than to copy it.
      if (setup.backend == common::Backend::kCpu) make_graph();
    } else {
      read_file();
    }
    log(std::to_string(vertices_) + " vertices, " + std::to_string(edges_) + " ratings, " + std::to_string(factors_) +
        " factors");
  }

  void make_graph() {
    ratings_.vertices = rmat_->vertices();
    ratings_.edges.reserve(edges_);
    ratings_.ratings.reserve(edges_);
    for (uint64_t i = 0; i < edges_; ++i) {
      ratings_.edges.push_back(rmat_->edge(i));
      ratings_.ratings.push_back(graph::planted_rating(source_.seed(), ratings_.edges.back()));
    }
  }

  void read_file() {
    auto file = graph::read_graph(source_.input(), source_.format(), graph::Values::kRead);
    labels_ = std::move(file.labels);
    ratings_.vertices = file.vertices;
    ratings_.edges = std::move(file.edges);
    ratings_.ratings = std::move(file.values);
    vertices_ = ratings_.vertices;
    edges_ = ratings_.edges.size();
    if (ratings_.ratings.empty()) {
      warn("the file has no ratings: planted ones are taken");
      ratings_.ratings.reserve(edges_);
      for (const auto& edge : ratings_.edges) ratings_.ratings.push_back(graph::planted_rating(source_.seed(), edge));
    }
    // A file's order is no random one (Fisher, Yates).
    for (uint64_t i = edges_; i-- > 1;) {
      const uint64_t j = graph::mix(source_.seed() + i * graph::kGolden) % (i + 1);
      std::swap(ratings_.edges[i], ratings_.edges[j]);
      std::swap(ratings_.ratings[i], ratings_.ratings[j]);
    }
    double sum = 0;
    for (const float rating : ratings_.ratings) sum += rating;
    settings_.mean = static_cast<float>(sum / static_cast<double>(edges_));
  }

  void InitSideTask() override {
    if (!rmat_ || !backend_->begin(*rmat_, source_.seed(), settings_)) backend_->begin(ratings_, settings_);
    ready_ = true;
  }

  freeride::Step RunNextStep() override {
    const auto rate = static_cast<float>(learning_rate_ / (1 + static_cast<double>(sweep_) * decay_));
    common::StepBudget budget(computing_.step_ms());
    bool swept = false;
    do {
      swept = backend_->advance(rate);
    } while (!swept && budget.another());
    if (swept) end_sweep();
    metric("megaedges", 1e-6 * static_cast<double>(backend_->visited()));
    return swept && sweeps_ > 0 && sweep_ >= sweeps_ ? freeride::Step::kFinished : freeride::Step::kMore;
  }

  void end_sweep() {
    rmse_ = std::sqrt(backend_->squared_error() / static_cast<double>(edges_));
    if (!std::isfinite(rmse_)) {
      throw freeride::TaskError("the factors have grown without bound in sweep " + std::to_string(sweep_ + 1) +
                                "; give a lower learning_rate");
    }
    metric("sweeps", static_cast<double>(++sweep_));
    metric("rmse", rmse_);
  }

  void StopSideTask() override {
    if (ready_ && sweep_ > 0) write_results();
    backend_->release();
  }

  bool small() const { return 2 * vertices_ * factors_ * sizeof(float) <= kMostSavedBytes; }

  struct Saved {
    uint64_t sweep, vertices, factors, edges;
    double rmse;
  };

  std::string SaveState() override {
    const Saved saved{small() ? sweep_ : 0, small() ? vertices_ : 0, factors_, edges_, rmse_};
    std::vector<float> values(saved.vertices * factors_ * 2);
    if (saved.vertices > 0) {
      backend_->read(Side::kFrom, 0, vertices_, values.data());
      backend_->read(Side::kTo, 0, vertices_, values.data() + values.size() / 2);
    }
    std::string state(reinterpret_cast<const char*>(&saved), sizeof(saved));
    return state.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }

  void RestoreState(uint32_t version, const std::string& state) override {
    Saved saved{};
    const bool header = version == kStateVersion && state.size() >= sizeof(saved);
    if (header) std::memcpy(&saved, state.data(), sizeof(saved));
    const uint64_t most = kMostSavedBytes / (2 * sizeof(float));
    const bool sane = header && saved.factors > 0 && saved.vertices <= most / saved.factors &&
                      state.size() == sizeof(saved) + saved.vertices * saved.factors * 2 * sizeof(float);
    if (!sane) throw freeride::TaskError("the saved state is of another version of sgd");
    if (saved.vertices != vertices_ || saved.factors != factors_ || saved.edges != edges_) return;  // begins anew
    std::vector<float> values(saved.vertices * saved.factors * 2);
    std::memcpy(values.data(), state.data() + sizeof(saved), values.size() * sizeof(float));
    backend_->write(Side::kFrom, values.data());
    backend_->write(Side::kTo, values.data() + values.size() / 2);
    sweep_ = saved.sweep;
    rmse_ = saved.rmse;
  }

  // ---- results ----

  void write_results() {
    if (output_.get().empty() && !small()) {
      log("the factors are not written: they are too large for scratch; name a folder with output=");
      return;
    }
    const auto folder = output_.get().empty() ? scratch_dir() : output_.get();
    write_factors(folder + "/from.npy", Side::kFrom);
    write_factors(folder + "/to.npy", Side::kTo);
    if (!labels_.empty()) write_labels(folder + "/labels.txt");
    log("factors after " + std::to_string(sweep_) + " sweeps, rmse " + std::to_string(rmse_) + ", are in " + folder);
  }

  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  [[noreturn]] static void fail(const std::string& path) {
    throw freeride::TaskError("cannot write " + path + ": " + std::strerror(errno));
  }

  static File create(const std::string& path) {
    File file(std::fopen((path + ".part").c_str(), "wbe"), &std::fclose);
    if (!file) fail(path);
    return file;
  }

  // Flushed before the rename: a reader finds the old result or the new one, whole.
  static void publish(std::FILE* file, const std::string& path) {
    const bool bad = std::fflush(file) != 0 || std::ferror(file) != 0;
    if (bad || std::rename((path + ".part").c_str(), path.c_str()) != 0) fail(path);
  }

  // NumPy's format, version 1.0: numpy.lib.format.
  void write_factors(const std::string& path, Side side) {
    const auto file = create(path);
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(vertices_) + ", " +
                         std::to_string(factors_) + "), }";
    header.resize((10 + header.size()) / 64 * 64 + 64 - 10 - 1, ' ');
    header += '\n';
    const unsigned char begin[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<unsigned char>(header.size()), 0};
    std::fwrite(begin, 1, sizeof begin, file.get());
    std::fwrite(header.data(), 1, header.size(), file.get());
    std::vector<float> values;
    for (uint64_t first = 0; first < vertices_; first += kVerticesAtOnce) {
      const uint64_t count = std::min(kVerticesAtOnce, vertices_ - first);
      values.resize(count * factors_);
      backend_->read(side, first, count, values.data());
      std::fwrite(values.data(), sizeof(float), values.size(), file.get());
    }
    publish(file.get(), path);
  }

  void write_labels(const std::string& path) const {
    const auto file = create(path);
    for (const auto label : labels_) std::fprintf(file.get(), "%llu\n", static_cast<unsigned long long>(label));
    publish(file.get(), path);
  }

  std::unique_ptr<FactorBackend> backend_;
  Settings settings_;
  std::optional<graph::Rmat> rmat_;  // of a generated graph
  Ratings ratings_;                  // empty where the backend makes them
  std::vector<uint64_t> labels_;
  uint64_t vertices_ = 0;
  uint64_t edges_ = 0;
  bool ready_ = false;
  uint64_t sweep_ = 0;
  double rmse_ = 0;
};

}  // namespace
}  // namespace sgd

FREERIDE_PLUGIN(sgd::Sgd, "sgd", "0.1.0", "factorises the ratings on a graph's edges by stochastic gradient descent")
