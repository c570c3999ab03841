// The pagerank plugin through its ABI, against a dense linear solver that shares nothing with it but the definition.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <utility>

#include "graph/graph.hpp"
#include "plugin_driver.hpp"

using freeride::testing::Driver;
using freeride::testing::TempDir;

namespace {

using Ranks = std::map<uint64_t, double>;
using Edges = std::vector<std::pair<uint64_t, uint64_t>>;

const freeride_plugin* plugin() {
  static const freeride_plugin* const table = freeride::testing::open_plugin(FREERIDE_BUILD_DIR "/plugins/pagerank.so");
  return table;
}

// Solves (I - d M) r = (1 - d)/n by Gaussian elimination; M's column of a dangling vertex is 1/n everywhere.
Ranks reference(const std::set<uint64_t>& vertices, const Edges& edges, double damping) {
  const std::vector<uint64_t> label(vertices.begin(), vertices.end());
  const size_t n = label.size();
  std::map<uint64_t, size_t> index;
  for (size_t i = 0; i < n; ++i) index[label[i]] = i;
  std::vector<double> out(n);
  for (const auto& [from, to] : edges) ++out[index[from]];
  std::vector<std::vector<double>> a(n, std::vector<double>(n + 1));
  for (size_t u = 0; u < n; ++u) {
    for (size_t v = 0; v < n && out[u] == 0; ++v) a[v][u] -= damping / static_cast<double>(n);
  }
  for (const auto& [from, to] : edges) a[index[to]][index[from]] -= damping / out[index[from]];
  for (size_t v = 0; v < n; ++v) {
    a[v][v] += 1;
    a[v][n] = (1 - damping) / static_cast<double>(n);
  }
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k; i < n; ++i) {
      if (std::abs(a[i][k]) > std::abs(a[pivot][k])) pivot = i;
    }
    std::swap(a[k], a[pivot]);
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j <= n && factor != 0; ++j) a[i][j] -= factor * a[k][j];
    }
  }
  Ranks ranks;
  std::vector<double> x(n);
  for (size_t k = n; k-- > 0;) {
    double sum = a[k][n];
    for (size_t j = k + 1; j < n; ++j) sum -= a[k][j] * x[j];
    x[k] = sum / a[k][k];
    ranks[label[k]] = x[k];
  }
  return ranks;
}

struct Result {
  std::string header;
  Ranks ranks;
  std::vector<double> order;
};

Result read_result(const std::string& file) {
  Result result;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line[0] == '#') {
      result.header += line + "\n";
      continue;
    }
    std::istringstream words(line);
    uint64_t vertex = 0;
    double rank = 0;
    words >> vertex >> rank;
    result.ranks[vertex] = rank;
    result.order.push_back(rank);
  }
  return result;
}

void check_equal(const Ranks& got, const Ranks& want) {
  REQUIRE(got.size() == want.size());
  double sum = 0;
  for (const auto& [vertex, rank] : want) {
    REQUIRE(got.count(vertex) == 1);
    CHECK(got.at(vertex) == Approx(rank).epsilon(1e-6));
    sum += got.at(vertex);
  }
  CHECK(sum == Approx(1).epsilon(1e-9));
}

// Random edges among few of many numbers, with dangling vertices, a self-loop and a repetition.
Edges random_edges(unsigned seed) {
  std::mt19937 random(seed);
  Edges edges{{1000003, 5}, {5, 5}, {5, 17}, {5, 17}};
  for (int i = 0; i < 400; ++i) edges.emplace_back(random() % 60 * 7, random() % 120 * 7);
  return edges;
}

std::set<uint64_t> vertices_of(const Edges& edges) {
  std::set<uint64_t> all;
  for (const auto& [from, to] : edges) all.insert({from, to});
  return all;
}

std::string write(const std::string& file, const std::string& text) {
  std::ofstream(file) << text;
  return file;
}

}  // namespace

TEST_CASE("a SNAP edge list has the reference's ranks") {
  TempDir dir;
  const double damping = GENERATE(0.85, 0.5, 0.0);
  const auto edges = random_edges(1);
  std::string text = "# Directed graph\r\n# FromNodeId\tToNodeId\n\n";
  for (const auto& [from, to] : edges) text += std::to_string(from) + "\t" + std::to_string(to) + "\r\n";
  Driver task(plugin(), dir.path(),
              {{"input", write(dir / "graph.txt", text)},
               {"repeat", "0"},
               {"top", "1000"},
               {"damping", std::to_string(damping)}});
  REQUIRE(task.run(100000) == FREERIDE_FINISHED);
  CHECK(task.stop() == FREERIDE_OK);
  const auto result = read_result(dir / "ranks.txt");
  check_equal(result.ranks, reference(vertices_of(edges), edges, damping));
  CHECK(std::is_sorted(result.order.rbegin(), result.order.rend()));
  CHECK(result.header.find(", converged") != std::string::npos);
  CHECK(task.metrics.at("residual") < 1e-9);
  CHECK(task.metrics.at("runs") == 1);
}

TEST_CASE("a Matrix Market file has the reference's ranks") {
  TempDir dir;
  const std::string symmetry = GENERATE("general", "symmetric");
  std::mt19937 random(2);
  Edges edges;
  std::string text;
  for (int i = 0; i < 150; ++i) {
    uint64_t row = random() % 40 + 1;
    uint64_t column = random() % 40 + 1;
    if (symmetry == "symmetric" && row < column) std::swap(row, column);
    edges.emplace_back(row, column);
    if (symmetry == "symmetric" && row != column) edges.emplace_back(column, row);
    text += std::to_string(row) + " " + std::to_string(column) + " -1.5e3\n";
  }
  std::set<uint64_t> vertices;  // the matrix's size counts, also rows without entries
  for (uint64_t v = 1; v <= 45; ++v) vertices.insert(v);
  text = "%%MatrixMarket MATRIX coordinate real " + symmetry + "\n% a comment\n45 45 150\n" + text;
  Driver task(plugin(), dir.path(), {{"input", write(dir / "graph.mtx", text)}, {"repeat", "0"}, {"top", "1000"}});
  REQUIRE(task.run(100000) == FREERIDE_FINISHED);
  check_equal(read_result(dir / "ranks.txt").ranks, reference(vertices, edges, 0.85));
}

TEST_CASE("a generated graph has the reference's ranks, and the next one of a repetition too") {
  TempDir dir;
  const uint64_t runs = GENERATE(1, 3);
  Driver task(plugin(), dir.path(),
              {{"scale", "8"}, {"edge_factor", "8"}, {"seed", "11"}, {"top", "1000"}, {"step_ms", "0.05"}});
  REQUIRE(task.create() == FREERIDE_OK);
  REQUIRE(task.init() == FREERIDE_OK);
  // One look at the clock per piece: the run of interest may end within a step that has begun the next run already, so
  // the result is read by its seed.
  Result result;
  const auto want_seed = "seed " + std::to_string(11 + runs - 1);
  while (result.header.find(want_seed) == std::string::npos) {
    REQUIRE(task.start() == FREERIDE_OK);
    REQUIRE(task.step() == FREERIDE_OK);
    REQUIRE(task.pause() == FREERIDE_OK);
    REQUIRE(task.metrics["runs"] < static_cast<double>(runs + 5));
    result = read_result(dir / "ranks.txt");
  }
  graph::RmatGenerator generator(256, 2048);
  generator.begin(11 + runs - 1);
  while (!generator.advance(100)) {
  }
  Edges edges;
  for (const auto& edge : generator.graph().edges) edges.emplace_back(edge.from, edge.to);
  std::set<uint64_t> vertices;
  for (uint64_t v = 0; v < 256; ++v) vertices.insert(v);
  check_equal(result.ranks, reference(vertices, edges, 0.85));
}

TEST_CASE("the generator is Graph500's: size, skew, and the seed alone decides") {
  graph::RmatGenerator one(4096, 65536);
  graph::RmatGenerator other(4096, 65536);
  one.begin(1);
  other.begin(1);
  while (!one.advance(777)) {
  }
  while (!other.advance(100000)) {
  }
  const auto& edges = one.graph().edges;
  REQUIRE(edges.size() == 65536);
  bool equal = true;
  std::vector<uint32_t> out(4096);
  for (size_t i = 0; i < edges.size(); ++i) {
    REQUIRE(edges[i].from < 4096);
    REQUIRE(edges[i].to < 4096);
    equal = equal && edges[i].from == other.graph().edges[i].from && edges[i].to == other.graph().edges[i].to;
    ++out[edges[i].from];
  }
  CHECK(equal);
  // A vertex's expected out-degree is edges * 0.76^zeros * 0.24^ones of its number: the greatest is 65536 * 0.76^12 =
  // 2434, for one vertex, and many have none.
  CHECK(*std::max_element(out.begin(), out.end()) == Approx(2434).margin(250));
  CHECK(std::count(out.begin(), out.end(), 0u) > 400);
  other.begin(2);
  while (!other.advance(100000)) {
  }
  size_t same = 0;
  for (size_t i = 0; i < edges.size(); ++i) same += edges[i].from == other.graph().edges[i].from ? 1 : 0;
  CHECK(same < edges.size() / 10);
}

TEST_CASE("a stop in the middle writes what is known, a stop before the first iteration nothing") {
  TempDir dir;
  const std::map<std::string, std::string> params{{"scale", "12"}, {"tolerance", "1e-15"}, {"step_ms", "0.05"}};
  {
    Driver task(plugin(), dir.path(), params);
    REQUIRE(task.create() == FREERIDE_OK);
    CHECK(task.stop() == FREERIDE_OK);
    CHECK_FALSE(std::filesystem::exists(dir / "ranks.txt"));
  }
  Driver task(plugin(), dir.path(), params);
  REQUIRE(task.create() == FREERIDE_OK);
  REQUIRE(task.init() == FREERIDE_OK);
  REQUIRE(task.start() == FREERIDE_OK);
  while (task.metrics["iteration"] < 1) REQUIRE(task.step() == FREERIDE_OK);
  CHECK(task.stop() == FREERIDE_OK);  // from RUNNING, with no pause before
  const auto result = read_result(dir / "ranks.txt");
  CHECK(result.header.find("not converged") != std::string::npos);
  CHECK(result.ranks.size() == 100);
  CHECK_FALSE(std::filesystem::exists(dir / "ranks.txt.part"));
}

TEST_CASE("a file that is no graph is refused by name and line") {
  struct Row {
    const char* text;
    const char* message;
  };
  const auto row = GENERATE(values<Row>({
      {"", "has no edges"},
      {"# only a comment\n", "has no edges"},
      {"1 2\n3\n", "graph:2: expected two vertex numbers, 'from to'"},
      {"1 2\n-3 4\n", "graph:2: expected two vertex numbers, 'from to'"},
      {"1 99999999999999999999\n", "graph:1: expected two vertex numbers, 'from to'"},
      {"\x7f"
       "ELF\x01\n",
       "graph:1: expected two vertex numbers, 'from to'"},
      {"%%MatrixMarket matrix array real general\n2 2\n", "graph:1: only the coordinate format"},
      {"%%MatrixMarket tensor\n", "graph:1: no Matrix Market banner"},
      {"%%MatrixMarket matrix coordinate real odd\n", "graph:1: unknown symmetry"},
      {"%%MatrixMarket matrix coordinate real general\n", "graph:1: the file ends before the size line"},
      {"%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1\n", "graph:2: the matrix is not square"},
      {"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1\n", "graph:3: the file ends after 1 of 2 entries"},
      {"%%MatrixMarket matrix coordinate real general\n2 2 1\n1 3\n", "graph:3: the entry lies outside the matrix"},
      {"%%MatrixMarket matrix coordinate real general\n2 2 1\n0 1\n", "graph:3: the entry lies outside the matrix"},
  }));
  TempDir dir;
  Driver task(plugin(), dir.path(), {{"input", write(dir / "graph", row.text)}});
  CHECK(task.create() == FREERIDE_ERROR);
  CHECK_THAT(task.failure, Catch::Contains(row.message));
}

TEST_CASE("an endless line, a missing file and a full disk are told apart") {
  TempDir dir;
  Driver endless(plugin(), dir.path(), {{"input", write(dir / "graph", std::string(100000, '7'))}});
  CHECK(endless.create() == FREERIDE_ERROR);
  CHECK_THAT(endless.failure, Catch::Contains("graph:1: the line is longer"));
  Driver missing(plugin(), dir.path(), {{"input", dir / "nothing"}});
  CHECK(missing.create() == FREERIDE_UNAVAILABLE);
  CHECK_THAT(missing.failure, Catch::Contains("cannot open graph file"));
  Driver unwritable(plugin(), dir / "no/such/folder", {{"scale", "5"}, {"repeat", "0"}});
  CHECK(unwritable.run(100000) == FREERIDE_ERROR);
  CHECK_THAT(unwritable.failure, Catch::Contains("cannot write"));
}

TEST_CASE("a replaced task goes on with its iteration, or with its run's graph, and ends with the same ranks") {
  TempDir dir, next_dir;
  const std::map<std::string, std::string> params{
      {"scale", "8"}, {"edge_factor", "8"}, {"seed", "11"}, {"top", "1000"}, {"step_ms", "0.05"}};
  const double runs = GENERATE(0.0, 1.0);
  Driver task(plugin(), dir.path(), params);
  REQUIRE(task.create() == FREERIDE_OK);
  REQUIRE(task.init() == FREERIDE_OK);
  REQUIRE(task.start() == FREERIDE_OK);
  while (task.metrics["runs"] < runs || task.metrics["iteration"] < 3) REQUIRE(task.step() == FREERIDE_OK);
  REQUIRE(task.pause() == FREERIDE_OK);
  std::string state;
  REQUIRE(task.save(state) == FREERIDE_OK);
  REQUIRE(task.step() == FREERIDE_OK);  // saving has changed nothing

  Driver next(plugin(), next_dir.path(), params);
  REQUIRE(next.create() == FREERIDE_OK);
  REQUIRE(next.init() == FREERIDE_OK);
  REQUIRE(next.restore(state) == FREERIDE_OK);
  std::string again;
  REQUIRE(next.save(again) == FREERIDE_OK);
  CHECK(again == state);
  const double before = task.metrics["iterations"];
  while (next.metrics["runs"] < task.metrics["runs"] + 1) REQUIRE(next.step() == FREERIDE_OK);
  CHECK(next.metrics["iterations"] >= before);
  while (task.metrics["runs"] < next.metrics["runs"]) REQUIRE(task.step() == FREERIDE_OK);
  const auto result = read_result(next_dir / "ranks.txt"), reference = read_result(dir / "ranks.txt");
  if (result.header == reference.header) CHECK(result.ranks == reference.ranks);
  CHECK(result.header.find("seed " + std::to_string(11 + static_cast<int>(next.metrics["runs"]) - 1)) !=
        std::string::npos);
  for (const auto& broken : {std::string("x"), state + "x", state.substr(0, state.size() - 1)}) {
    Driver refusing(plugin(), next_dir.path(), params);
    REQUIRE(refusing.run(0) == FREERIDE_OK);
    CHECK(refusing.restore(broken) == FREERIDE_ERROR);
    CHECK(refusing.failure.find("another version") != std::string::npos);
  }
}

TEST_CASE("a generated graph may have any number of vertices, all of which its edges reach") {
  const uint64_t vertices = GENERATE(2, 3, 1000, 1025);
  const graph::Rmat rmat(vertices, 200000, 5);
  std::set<uint32_t> seen;
  for (uint64_t i = 0; i < rmat.edges(); ++i) {
    const auto edge = rmat.edge(i);
    REQUIRE(edge.from < vertices);
    REQUIRE(edge.to < vertices);
    seen.insert({edge.from, edge.to});
  }
  CHECK(seen.size() > vertices * 9 / 10);
}

TEST_CASE("parameters that make no sense here are refused in one sentence") {
  TempDir dir;
  struct Row {
    const char *key, *value;
    freeride_status status;
    const char* message;
  };
  const auto row = GENERATE(values<Row>({
      {"backend", "cuda", FREERIDE_BAD_PARAMETER, "the task is on cpu-0, which is no GPU"},
      {"backend", "gpu", FREERIDE_BAD_PARAMETER, "must be one of auto|cpu|cuda"},
      {"vertices", "1", FREERIDE_BAD_PARAMETER, "a graph has at least two"},
      {"scale", "1e3", FREERIDE_BAD_PARAMETER, "must be a whole number in 1..28"},
#ifndef FREERIDE_SANITIZED  // whose allocators end the process
      {"edges", "90000000000", FREERIDE_OUT_OF_MEMORY, "out of host memory"},
#endif
  }));
  Driver task(plugin(), dir.path(), {{row.key, row.value}});
  CHECK(task.create() == row.status);
  CHECK_THAT(task.failure, Catch::Contains(row.message));
}
