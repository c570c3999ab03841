// The sgd plugin through its ABI: the error falls, as far as it can, and every way in which its input can be wrong.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "graph/graph.hpp"
#include "plugin_driver.hpp"

using freeride::testing::Driver;
using freeride::testing::TempDir;

namespace {

using Params = std::map<std::string, std::string>;

const freeride_plugin* plugin() {
  static const freeride_plugin* const table = freeride::testing::open_plugin(FREERIDE_BUILD_DIR "/plugins/sgd.so");
  return table;
}

std::string write(const std::string& file, const std::string& text) {
  std::ofstream(file) << text;
  return file;
}

struct Factors {
  uint64_t rows = 0, columns = 0;
  std::vector<float> values;
  float at(uint64_t row, uint64_t column) const { return values.at(row * columns + column); }
};

// NumPy's format, as NumPy would read it.
Factors read_npy(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  REQUIRE(bytes.size() > 10);
  REQUIRE(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
  REQUIRE((10 + header) % 64 == 0);
  const auto text = bytes.substr(10, header);
  CHECK(text.find("'descr': '<f4', 'fortran_order': False") != std::string::npos);
  CHECK(text.back() == '\n');
  Factors factors;
  unsigned long long rows = 0, columns = 0;
  REQUIRE(std::sscanf(text.c_str() + text.find("'shape'"), "'shape': (%llu, %llu)", &rows, &columns) == 2);
  factors.rows = rows;
  factors.columns = columns;
  REQUIRE(bytes.size() == 10 + header + rows * columns * sizeof(float));
  factors.values.resize(rows * columns);
  std::memcpy(factors.values.data(), bytes.data() + 10 + header, rows * columns * sizeof(float));
  return factors;
}

}  // namespace

TEST_CASE("the error falls from sweep to sweep, down to the noise, and the factors written are those that reach it") {
  TempDir dir;
  const auto factors = GENERATE("8", "16", "64");
  Driver task(plugin(), dir.path(),
              {{"vertices", "200"}, {"edges", "20000"}, {"factors", factors}, {"sweeps", "40"}, {"step_ms", "0.05"}});
  REQUIRE(task.create() == FREERIDE_OK);
  REQUIRE(task.init() == FREERIDE_OK);
  REQUIRE(task.start() == FREERIDE_OK);
  std::vector<double> rmse;
  for (freeride_status status = FREERIDE_OK; status == FREERIDE_OK;) {
    status = task.step();
    REQUIRE(status >= 0);
    if (task.metrics["sweeps"] > static_cast<double>(rmse.size())) rmse.push_back(task.metrics["rmse"]);
  }
  REQUIRE(rmse.size() == 40);
  CHECK(rmse[0] > 0.4);  // four products of uniform numbers have a deviation of 0.67
  for (size_t i = 1; i < 10; ++i) CHECK(rmse[i] < rmse[i - 1]);
  CHECK(rmse.back() < 0.15);  // the noise has 0.06
  REQUIRE(task.stop() == FREERIDE_OK);

  const auto p = read_npy(dir / "from.npy"), q = read_npy(dir / "to.npy");
  REQUIRE(p.rows == 200);
  REQUIRE(q.columns == std::stoul(factors));
  const graph::Rmat rmat(200, 20000, 1);
  double sum = 0;
  for (uint64_t i = 0; i < rmat.edges(); ++i) {
    const auto edge = rmat.edge(i);
    double product = 3;
    for (uint64_t k = 0; k < p.columns; ++k) product += p.at(edge.from, k) * q.at(edge.to, k);
    sum += std::pow(graph::planted_rating(1, edge) - product, 2);
  }
  CHECK(std::sqrt(sum / 20000) < rmse.back());  // all of them after the last visit
}

TEST_CASE("ratings come from a file: SNAP's third column, Matrix Market's values, also of an oblong matrix") {
  TempDir dir;
  // Rank 1: r = row * column.
  std::string snap = "# from to rating\n", mm = "%%MatrixMarket matrix coordinate real general\n6 9 54\n";
  for (int i = 1; i <= 6; ++i) {
    for (int j = 1; j <= 9; ++j) {
      const auto rating = std::to_string(0.1 * i * j);
      snap += std::to_string(i) + "\t" + std::to_string(100 + j) + "\t" + rating + "\n";
      mm += std::to_string(i) + " " + std::to_string(j) + " " + rating + "\n";
    }
  }
  const bool is_mm = GENERATE(false, true);
  Driver task(plugin(), dir.path(),
              {{"input", write(dir / "ratings", is_mm ? mm : snap)},
               {"factors", "8"},
               {"sweeps", "600"},
               {"regularisation", "0.0001"}});
  REQUIRE(task.run(1000000) == FREERIDE_FINISHED);
  CHECK(task.metrics["rmse"] < 0.05);
  CHECK_FALSE(task.logged("planted"));
  REQUIRE(task.stop() == FREERIDE_OK);
  CHECK(read_npy(dir / "to.npy").rows == (is_mm ? 9 : 15));
  std::ifstream labels(dir / "labels.txt");
  std::string first;
  std::getline(labels, first);
  CHECK(first == "1");
}

TEST_CASE("a file without ratings gets planted ones, and says so") {
  TempDir dir;
  Driver task(plugin(), dir.path(), {{"input", write(dir / "graph", "1 2\n2 3\n3 1\n")}, {"sweeps", "2"}});
  REQUIRE(task.run(1000) == FREERIDE_FINISHED);
  CHECK(task.logged("no ratings"));
}

TEST_CASE("bad input is refused in one sentence") {
  TempDir dir;
  struct Row {
    Params params;
    const char* text;
    freeride_status status;
    const char* message;
  };
  const std::vector<Row> rows{
      {{{"factors", "12"}}, nullptr, FREERIDE_BAD_PARAMETER, "factors=12: must be 8, 16, 32, 64 or 128"},
      {{{"factors", "many"}}, nullptr, FREERIDE_BAD_PARAMETER, "factors=many: must be a whole number in 8..128"},
      {{{"backend", "cuda"}}, nullptr, FREERIDE_BAD_PARAMETER, "the task is on cpu-0, which is no GPU"},
      {{{"vertices", "1"}}, nullptr, FREERIDE_BAD_PARAMETER, "a graph has at least two"},
#ifndef FREERIDE_SANITIZED  // whose allocators end the process
      {{{"edges", "90000000000"}}, nullptr, FREERIDE_OUT_OF_MEMORY, "out of host memory"},
#endif
      {{{"input", dir / "nothing"}}, nullptr, FREERIDE_UNAVAILABLE, "cannot open graph file"},
      {{}, "1 2 five\n", FREERIDE_ERROR, "graph:1: expected a number after 'from to'"},
      {{}, "1 2 5\n3 4\n", FREERIDE_ERROR, "graph:2: expected a number after 'from to'"},
      {{}, "1 2 5\n3 4 nan\n", FREERIDE_ERROR, "graph:2: expected a number after 'from to'"},
      {{}, "%%MatrixMarket matrix coordinate real general\n2 3 1\n3 1 1\n", FREERIDE_ERROR, "outside the matrix"},
      {{},
       "%%MatrixMarket matrix coordinate real general\n2 3 1\n2 3\n",
       FREERIDE_ERROR,
       "expected 'row column value'"},
  };
  for (const auto& row : rows) {
    auto params = row.params;
    if (row.text != nullptr) params["input"] = write(dir / "graph", row.text);
    Driver task(plugin(), dir.path(), params);
    CHECK(task.create() == row.status);
    CHECK_THAT(task.failure, Catch::Contains(row.message));
  }
}

TEST_CASE("factors that grow without bound end the task, with advice") {
  TempDir dir;
  Driver task(plugin(), dir.path(), {{"vertices", "50"}, {"edges", "5000"}, {"learning_rate", "10"}});
  CHECK(task.run(100000) == FREERIDE_ERROR);
  CHECK_THAT(task.failure, Catch::Contains("lower learning_rate"));
}

TEST_CASE("a replaced task goes on with its factors") {
  TempDir dir, next_dir;
  const Params params{{"vertices", "300"}, {"edges", "30000"}, {"step_ms", "0.05"}};
  Driver task(plugin(), dir.path(), params);
  REQUIRE(task.create() == FREERIDE_OK);
  REQUIRE(task.init() == FREERIDE_OK);
  REQUIRE(task.start() == FREERIDE_OK);
  while (task.metrics["sweeps"] < 12) REQUIRE(task.step() == FREERIDE_OK);
  REQUIRE(task.pause() == FREERIDE_OK);
  std::string state;
  REQUIRE(task.save(state) == FREERIDE_OK);
  const double before = task.metrics["rmse"];

  Driver next(plugin(), next_dir.path(), params);
  REQUIRE(next.create() == FREERIDE_OK);
  REQUIRE(next.init() == FREERIDE_OK);
  REQUIRE(next.restore(state) == FREERIDE_OK);
  std::string again;
  REQUIRE(next.save(again) == FREERIDE_OK);
  CHECK(again == state);
  while (next.metrics["sweeps"] < 13) REQUIRE(next.step() == FREERIDE_OK);
  CHECK(next.metrics["rmse"] < before * 1.01);
  for (const auto& broken : {std::string("x"), state + "x", state.substr(0, state.size() - 1)}) {
    Driver refusing(plugin(), next_dir.path(), params);
    REQUIRE(refusing.run(0) == FREERIDE_OK);
    CHECK(refusing.restore(broken) == FREERIDE_ERROR);
    CHECK(refusing.failure.find("another version") != std::string::npos);
  }
}

TEST_CASE("results that cannot be written are named") {
  TempDir dir;
  Driver task(plugin(), dir / "no/such/folder", {{"vertices", "50"}, {"edges", "500"}, {"sweeps", "1"}});
  REQUIRE(task.run(1000) == FREERIDE_FINISHED);
  CHECK(task.stop() == FREERIDE_ERROR);
  CHECK_THAT(task.failure, Catch::Contains("cannot write"));
}
