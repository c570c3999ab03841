// Side task: PageRank of a graph file or of a generated graph. docs/tasks/shipped.md lists the parameters.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/backend.hpp"
#include "freeride/plugin.hpp"
#include "graph/graph.hpp"
#include "graph/graph_params.hpp"
#include "rank.hpp"

namespace pagerank {
namespace {

using graph::EdgeList;
using graph::GraphBuilder;
using graph::RmatGenerator;

// Work between two looks at the clock, 10 to 50 µs each.
constexpr size_t kEdgesAtOnce = 1024;
constexpr size_t kVerticesAtOnce = 4096;
// More are not worth a state: a larger graph's run begins anew.
constexpr uint64_t kMostSavedRanks = 8'000'000;

class PageRank : public freeride::SideTask, public freeride::KeepsState {
  graph::GraphParams source_{this};
  freeride::Param<double> damping_{this, "damping", 0.85, "probability to follow a link", {0, 0.999}};
  freeride::Param<double> tolerance_{
      this, "tolerance", 1e-9, "stop when an iteration changes the ranks by less, L1", {0, 1}};
  freeride::Param<uint64_t> max_iterations_{
      this, "max_iterations", 1000, "stop after so many in any case", {1, 1000000}};
  freeride::Param<uint32_t> top_{this, "top", 100, "vertices written to ranks.txt", {1, 100000000}};
  freeride::Param<bool> repeat_{this, "repeat", true,
                                "when converged, continue with the next seed's graph (a file: compute it again)"};
  common::Computing computing_{this};

  void CreateSideTask() override {
    const auto setup = computing_.on(device());
    backend_ = make_backend(setup);
    if (generates()) {
      rmat_ = source_.rmat();
      // On a GPU the graph is made there, at InitSideTask: it is faster than to copy it.
      if (setup.backend == common::Backend::kCpu) make_graph();
    } else {
      file_ = graph::read_graph(source_.input(), source_.format());
      build(file_);
      file_.edges = {};  // the compressed rows hold them now
    }
    log(std::to_string(vertices()) + " vertices, " + std::to_string(edges()) + " edges");
  }

  bool generates() const { return source_.generates(); }
  uint64_t vertices() const { return generates() ? rmat_.vertices() : graph().vertices; }
  uint64_t edges() const { return generates() ? rmat_.edges() : graph().source.size(); }

  void make_graph() {
    if (!generator_) generator_.emplace(rmat_.vertices(), rmat_.edges());
    generator_->begin(source_.seed() + runs_);
    while (!generator_->advance(kEdgesAtOnce)) {
    }
    build(generator_->graph());
  }

  void build(const EdgeList& edges) {
    builder_.begin(edges);
    while (!builder_.advance(kEdgesAtOnce)) {
    }
  }

  void InitSideTask() override { load(); }

  void load() {
    begin_run();
    while (phase_ != Phase::kRank || !backend_->has_graph()) advance();
  }

  freeride::Step RunNextStep() override {
    return computing_.step([this] { return advance(); });
  }

  void StopSideTask() override {
    // A stop in the middle of the first run: what the last complete iteration knew. Later, ranks.txt has the last
    // complete run.
    if (runs_ == 0 && iteration_ > 0) {
      best_.clear();
      collected_ = 0;
      while (!collect()) {
      }
      write_result();
    }
    backend_->release();
  }

  // The run, and within it the last complete iteration: whole iterations are what goes on elsewhere.
  struct Saved {
    uint64_t runs, iterations, iteration, vertices;  // vertices: of the ranks that follow
  };

  std::string SaveState() override {
    const bool ranking = (phase_ == Phase::kRank && iteration_ > 0) || phase_ == Phase::kCollect;
    const bool fits = ranking && vertices() <= kMostSavedRanks;
    const Saved saved{runs_, iterations_, fits ? iteration_ : 0, fits ? vertices() : 0};
    std::vector<double> ranks(saved.vertices);
    if (fits) backend_->read_ranks(0, saved.vertices, ranks.data());
    std::string state(reinterpret_cast<const char*>(&saved), sizeof(saved));
    state.append(reinterpret_cast<const char*>(ranks.data()), ranks.size() * sizeof(double));
    return state;
  }

  void RestoreState(uint32_t version, const std::string& state) override {
    Saved saved{};
    const bool header = version == kStateVersion && state.size() >= sizeof(saved);
    if (header) std::memcpy(&saved, state.data(), sizeof(saved));
    if (!header || saved.vertices > kMostSavedRanks || state.size() != sizeof(saved) + saved.vertices * sizeof(double))
      throw freeride::TaskError("the saved state is of another version of pagerank");
    runs_ = saved.runs;
    iterations_ = saved.iterations;
    if (generates() && runs_ > 0) load();  // another graph than the first one
    if (saved.vertices == 0 || saved.vertices != vertices()) return;
    std::vector<double> ranks(saved.vertices);
    std::memcpy(ranks.data(), state.data() + sizeof(saved), saved.vertices * sizeof(double));
    backend_->start_from(ranks.data());
    iteration_ = saved.iteration;
  }

  enum class Phase { kGenerate, kBuild, kRank, kCollect };

  // One small piece of work; true when the task is done.
  bool advance() {
    switch (phase_) {
      case Phase::kGenerate:
        if (generator_->advance(kEdgesAtOnce)) {
          builder_.begin(generator_->graph());
          phase_ = Phase::kBuild;
        }
        return false;
      case Phase::kBuild:
        if (builder_.advance(kEdgesAtOnce)) begin_run();
        return false;
      case Phase::kRank:
        if (backend_->advance()) end_iteration();
        return false;
      case Phase::kCollect:
        return collect() && end_run();
    }
    return true;
  }

  // The next run: with this seed's graph, made in pieces where it is not there yet, or with the file's.
  void begin_run() {
    if (generates()) {
      rmat_ = {rmat_.vertices(), rmat_.edges(), source_.seed() + runs_};
      if (backend_->begin(rmat_, damping_)) return begin_ranking();
      if (!generator_ || made_ != runs_) {
        if (!generator_) generator_.emplace(rmat_.vertices(), rmat_.edges());
        generator_->begin(source_.seed() + runs_);
        made_ = runs_;
        phase_ = Phase::kGenerate;
        return;
      }
    }
    backend_->begin(graph(), damping_);
    begin_ranking();
  }

  void begin_ranking() {
    iteration_ = 0;
    phase_ = Phase::kRank;
  }

  void end_iteration() {
    ++iteration_;
    ++iterations_;
    metric("iteration", static_cast<double>(iteration_));
    metric("iterations", static_cast<double>(iterations_));
    metric("residual", backend_->residual());
    if (backend_->residual() >= tolerance_ && iteration_ < max_iterations_) return;
    best_.clear();
    collected_ = 0;
    phase_ = Phase::kCollect;
  }

  // Looks at some more vertices for the `top` highest ranks; true when it has seen all.
  bool collect() {
    const uint64_t from = collected_;
    const uint64_t until = std::min<uint64_t>(vertices(), from + kVerticesAtOnce);
    ranks_.resize(until - from);
    backend_->read_ranks(from, ranks_.size(), ranks_.data());
    const auto higher = [](const Ranked& a, const Ranked& b) {
      return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    for (; collected_ < until; ++collected_) {
      const Ranked entry{ranks_[collected_ - from], static_cast<uint32_t>(collected_)};
      if (best_.size() < top_) {
        best_.push_back(entry);
        std::push_heap(best_.begin(), best_.end(), higher);
      } else if (higher(entry, best_.front())) {
        std::pop_heap(best_.begin(), best_.end(), higher);
        best_.back() = entry;
        std::push_heap(best_.begin(), best_.end(), higher);
      }
    }
    if (collected_ < vertices()) return false;
    std::sort_heap(best_.begin(), best_.end(), higher);
    return true;
  }

  // True when there is nothing left to do.
  bool end_run() {
    write_result();
    metric("runs", static_cast<double>(++runs_));
    if (!repeat_) return true;
    begin_run();
    return false;
  }

  void write_result() {
    const bool converged = backend_->residual() < tolerance_;
    const auto path = scratch_path("ranks.txt");
    const auto part = path + ".part";
    const auto fail = [&] { throw freeride::TaskError("cannot write " + part + ": " + std::strerror(errno)); };
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(part.c_str(), "we"), &std::fclose);
    if (!file) fail();
    const auto source = generates()
                            ? "rmat of " + std::to_string(vertices()) + " vertices, " + std::to_string(edges()) +
                                  " edges, seed " + std::to_string(source_.seed() + runs_)
                            : source_.input();
    std::fprintf(file.get(), "# pagerank of %s\n# damping %.17g, iterations %llu, residual %.3g, %s\n# vertex rank\n",
                 source.c_str(), damping_.get(), static_cast<unsigned long long>(iteration_), backend_->residual(),
                 converged ? "converged" : "not converged");
    for (const auto& [rank, vertex] : best_) {
      const uint64_t label = file_.labels.empty() ? vertex : file_.labels[vertex];
      std::fprintf(file.get(), "%llu %.17g\n", static_cast<unsigned long long>(label), rank);
    }
    // Flushed before the rename: a reader finds the old result or the new one, whole.
    if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0 || std::rename(part.c_str(), path.c_str()) != 0)
      fail();
  }

  const graph::Graph& graph() const { return builder_.graph(); }

  using Ranked = std::pair<double, uint32_t>;

  std::unique_ptr<RankBackend> backend_;
  graph::Rmat rmat_{2, 1, 0};               // of a generated graph
  std::optional<RmatGenerator> generator_;  // of it, where the backend does not make it
  uint64_t made_ = 0;                       // the run whose graph is built
  EdgeList file_;                           // of a graph file: its labels
  GraphBuilder builder_;
  Phase phase_ = Phase::kRank;
  uint64_t iteration_ = 0;   // of this run
  uint64_t iterations_ = 0;  // of all runs
  uint64_t runs_ = 0;
  std::vector<Ranked> best_;
  std::vector<double> ranks_;
  size_t collected_ = 0;
};

}  // namespace
}  // namespace pagerank

FREERIDE_PLUGIN(pagerank::PageRank, "pagerank", "0.1.0", "PageRank of a graph file or a generated R-MAT graph")
