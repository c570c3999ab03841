// The trainings through their ABI, on inputs so small that a CPU is quick.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "../image/codec.hpp"
#include "memory.hpp"
#include "plugin_driver.hpp"
#include "version.hpp"

using freeride::testing::Driver;
using freeride::testing::open_plugin;
using freeride::testing::TempDir;
using Params = std::map<std::string, std::string>;

namespace {

const freeride_plugin* plugin(const std::string& name) {
  return open_plugin(FREERIDE_BUILD_DIR "/plugins/" + name + ".so");
}

Params tiny(Params more = {}) {
  more.insert({{"batch", "4"}, {"image", "32"}, {"classes", "4"}});
  return more;
}

void write_picture(const std::string& path, uint8_t shade) {
  const auto writer = image::create_writer(path, image::Format::kPng, 40, 30, 3, 90);
  const std::vector<uint8_t> row(40 * 3, shade);
  for (int y = 0; y < 30; ++y) writer->write_row(row.data());
  writer->finish();
}

std::string refusal(const std::string& name, Params params) {
  const TempDir scratch;
  Driver driver(plugin(name), scratch.path(), std::move(params));
  CHECK(driver.create() < 0);
  return driver.failure;
}

}  // namespace

TEST_CASE("training: resnet18 learns its images, and goes on from a saved state") {
  const TempDir scratch;
  Driver driver(plugin("resnet18"), scratch.path(), tiny());
  REQUIRE(driver.run(2) == FREERIDE_OK);
  const double first = driver.metrics.at("loss");
  for (int i = 0; i < 20; ++i) REQUIRE(driver.step() == FREERIDE_OK);
  CHECK(driver.metrics.at("loss") < first / 2);

  std::string state;
  REQUIRE(driver.save(state) == FREERIDE_OK);
  Driver next(plugin("resnet18"), scratch.path(), tiny({{"rate", "0"}, {"seed", "2"}}));
  REQUIRE(next.create() == FREERIDE_OK);
  REQUIRE(next.init() == FREERIDE_OK);
  REQUIRE(next.restore(state) == FREERIDE_OK);
  // Saved again, it is the same state: nothing was lost on the way.
  std::string again;
  REQUIRE(next.save(again) == FREERIDE_OK);
  CHECK(again == state);
  CHECK(next.restore("0\nnonsense") < 0);
  CHECK_FALSE(next.failure.empty());
}

TEST_CASE("training: stopping between layers changes no result, and no weight by a bit") {
  for (const char* model : {"resnet18", "resnet50", "vgg19"}) {
    std::string states[2];
    for (const bool yields : {false, true}) {
      const TempDir scratch;
      Driver driver(plugin(model), scratch.path(),
                    tiny({{"batch", "2"}, {"width_pct", "12"}, {"piece_ms", yields ? "0.0001" : "0"}}));
      REQUIRE(driver.run(3) == FREERIDE_OK);
      REQUIRE(driver.save(states[yields ? 1 : 0]) == FREERIDE_OK);
      // Between any two of 36, 100 and 24 layers, forward and backward, before the update, and where a layer with
      // weights makes first their gradients.
      const char* pieces = model == std::string("resnet18")   ? "a step is cut into 106 pieces"
                           : model == std::string("resnet50") ? "a step is cut into 298 pieces"
                                                              : "a step is cut into 66 pieces";
      CHECK(driver.logged(pieces) == yields);
    }
    INFO(model);
    CHECK(states[0] == states[1]);
  }
}

TEST_CASE("training: vgg19 goes on from a saved state, in half the bits where it is large") {
  for (const char* width : {"12", "40"}) {  // 13 MiB, 86 MiB of weights
    const TempDir scratch;
    const Params params = tiny({{"batch", "1"}, {"width_pct", width}});
    Driver driver(plugin("vgg19"), scratch.path(), params);
    REQUIRE(driver.run(1) == FREERIDE_OK);
    std::string state;
    REQUIRE(driver.save(state) == FREERIDE_OK);
    CHECK(state.size() > size_t{4} << 20);
    CHECK(state.size() < size_t{48} << 20);
    Driver next(plugin("vgg19"), scratch.path(), params);
    REQUIRE(next.create() == FREERIDE_OK);
    REQUIRE(next.init() == FREERIDE_OK);
    REQUIRE(next.restore(state) == FREERIDE_OK);
    std::string again;
    REQUIRE(next.save(again) == FREERIDE_OK);
    CHECK(again == state);
    REQUIRE(next.start() == FREERIDE_OK);
    REQUIRE(next.step() == FREERIDE_OK);
    CHECK(std::isfinite(next.metrics.at("loss")));
  }
}

TEST_CASE("training: resnet50 makes a step") {
  const TempDir scratch;
  Driver fifty(plugin("resnet50"), scratch.path(), tiny({{"batch", "2"}}));
  REQUIRE(fifty.run(1) == FREERIDE_OK);
  CHECK(std::isfinite(fifty.metrics.at("loss")));
}

TEST_CASE("training: a folder of pictures, a damaged one among them") {
  const TempDir scratch;
  const TempDir data;
  std::filesystem::create_directories(data / "dark");
  std::filesystem::create_directories(data / "light");
  write_picture(data / "dark/a.png", 20);
  write_picture(data / "dark/b.png", 40);
  write_picture(data / "light/c.png", 230);
  std::ofstream(data / "light/d.jpg") << "no picture";
  Driver driver(plugin("resnet18"), scratch.path(), tiny({{"data", data.path()}, {"classes", "2"}}));
  REQUIRE(driver.run(3) == FREERIDE_OK);
  CHECK(std::isfinite(driver.metrics.at("loss")));
  CHECK(driver.logged("d.jpg is left out"));
}

TEST_CASE("training: what cannot be is refused in one line") {
  CHECK(refusal("resnet18", tiny({{"batch", "0"}})).find("batch=0: must be a whole number in 1..65536") !=
        std::string::npos);
  CHECK(refusal("resnet18", tiny({{"data", "/nowhere"}})).find("data=/nowhere: No such file") != std::string::npos);
  const TempDir empty;
  CHECK(refusal("resnet18", tiny({{"data", empty.path()}})).find("no subfolder") != std::string::npos);
  std::filesystem::create_directories(empty / "one");
  CHECK(refusal("resnet18", tiny({{"data", empty.path()}})).find("no .jpg, .jpeg or .png") != std::string::npos);
}

TEST_CASE("training: a batch that is larger than the memory is out of memory, in one line") {
  const TempDir scratch;
  Driver driver(plugin("resnet18"), scratch.path(), {{"batch", "65536"}, {"image", "4096"}});
  REQUIRE(driver.create() == FREERIDE_OK);
  CHECK(driver.init() == FREERIDE_OUT_OF_MEMORY);
  INFO(driver.failure);
  CHECK(driver.failure.find("allocate") != std::string::npos);
  CHECK(driver.failure.find('\n') == std::string::npos);
}

TEST_CASE("training: what memory was too small for is said in one short line, whichever library says it") {
  using training::memory_problem;
  const std::string advice = "; raise the task's memory limit, or lower batch or image";
  CHECK(memory_problem("CUDA out of memory. Tried to allocate 12.25 GiB. GPU 0 has a total capacity of 139.80 GiB of "
                       "which 5.11 GiB is free. Of the allocated memory 3.0 GiB is allocated by PyTorch.") ==
        "CUDA out of memory. Tried to allocate 12.25 GiB" + advice);
  CHECK(memory_problem("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED") ==
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED" + advice);
  CHECK(memory_problem("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`") ==
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`" + advice);
  CHECK(memory_problem("mat1 and mat2 shapes cannot be multiplied (4x512 and 500x10)").empty());
}

TEST_CASE("training: a LibTorch of another version is refused in one line") {
  using training::version_problem;
  CHECK(version_problem("2.11.", "2.11.0+cu130", "/a/lib/libtorch_cpu.so").empty());
  CHECK(version_problem("1.13.", "", "/usr/lib/libtorch_cpu.so").empty());  // Debian's has no version.py
  CHECK(version_problem("2.1.", "2.11.0", "/a/lib/libtorch_cpu.so") ==
        "it was built with LibTorch 2.1.x, and /a/lib/libtorch_cpu.so is 2.11.0: build it with that one, or name the "
        "other's Python with --python");
}

TEST_CASE("training: the contract holds, by plugin check") {
  const std::string command =
      FREERIDE_BUILD_DIR "/bin/freeride-runner check " FREERIDE_BUILD_DIR
                         "/plugins/resnet18.so --steps 4 --param batch=2 --param image=32 --param classes=4";
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string said;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) said += static_cast<char>(c);
  INFO(said);
  CHECK(pclose(pipe) == 0);
}
