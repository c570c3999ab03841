// The image plugin through its ABI: every pixel against a reference, and every way in which a file can be wrong.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "plugin_driver.hpp"
#include "test_pictures.hpp"

using freeride::testing::Driver;
using freeride::testing::TempDir;
using namespace image_test;
namespace fs = std::filesystem;

namespace {

using Params = std::map<std::string, std::string>;
constexpr uint64_t kManySteps = 1000000;

const freeride_plugin* plugin() {
  static const freeride_plugin* const table = freeride::testing::open_plugin(FREERIDE_BUILD_DIR "/plugins/image.so");
  return table;
}

std::string make_folder(const std::string& path) {
  fs::create_directories(path);
  return path;
}

// One pass over `in` without a watermark, everything as PNG.
Params one_pass(const std::string& in, const std::string& width, const std::string& height = "0") {
  return {{"input", in}, {"width", width}, {"height", height}, {"repeat", "0"}, {"watermark", ""}, {"format", "png"}};
}

std::string slurp(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void spit(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("a PNG is resized to the pixel, shrunk and grown, with and without alpha") {
  TempDir dir;
  const unsigned channels = GENERATE(3, 4);
  const bool interlaced = GENERATE(false, true);
  struct Row {
    uint32_t width, height;
    const char* filter;
    bool box_x, box_y;
  };
  const auto row = GENERATE(values<Row>({{23, 17, "auto", true, true},
                                         {97, 61, "auto", true, true},  // the same size: the same picture
                                         {150, 100, "auto", false, false},
                                         {40, 100, "auto", true, false},
                                         {150, 7, "auto", false, true},
                                         {150, 100, "box", true, true},
                                         {31, 9, "bilinear", false, false},
                                         {1, 1, "auto", true, true}}));
  const auto in = make_folder(dir / "in");
  const auto source = make_picture(97, 61, channels, 1);
  write_png(in + "/a.png", source, interlaced);
  auto params = one_pass(in, std::to_string(row.width), std::to_string(row.height));
  params["filter"] = row.filter;
  Driver task(plugin(), dir.path(), params);
  REQUIRE(task.run(kManySteps) == FREERIDE_FINISHED);
  CHECK(task.metrics.at("images") == 1);
  const auto want = resize_reference(source, row.width, row.height, row.box_x, row.box_y);
  CHECK(difference(read_png(dir / "out/a.png"), want) <= 1);
}

TEST_CASE("a JPEG is resized to the pixel: baseline, progressive, grey") {
  TempDir dir;
  const auto kind = GENERATE(Kind::kBaseline, Kind::kProgressive, Kind::kGrey);
  const auto in = make_folder(dir / "in");
  write_jpeg(in + "/b.JPG", make_picture(203, 151, 3, 2), kind);
  Driver task(plugin(), dir.path(), one_pass(in, "64"));
  REQUIRE(task.run(kManySteps) == FREERIDE_FINISHED);
  // The shape is kept: 151 * 64 / 203 = 47.6.
  const auto want = resize_reference(read_jpeg(in + "/b.JPG"), 64, 48, true, true);
  CHECK(difference(read_png(dir / "out/b.JPG.png"), want) <= 1);
}

TEST_CASE("a result keeps its format unless told otherwise, and a JPEG gets white behind what is transparent") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  Picture clear{32, 32, 4, std::vector<uint8_t>(4096)};  // black, and fully transparent
  write_png(in + "/clear.png", clear);
  write_jpeg(in + "/j.jpeg", make_picture(64, 64, 3, 3));
  auto params = one_pass(in, "32");
  params["format"] = "same";
  Driver same(plugin(), dir / "same", params);
  REQUIRE(same.run(kManySteps) == FREERIDE_FINISHED);
  CHECK(read_png(dir / "same/out/clear.png").bytes == clear.bytes);
  CHECK(read_jpeg(dir / "same/out/j.jpeg").height == 32);
  params["format"] = "jpeg";
  Driver jpeg(plugin(), dir / "jpeg", params);
  REQUIRE(jpeg.run(kManySteps) == FREERIDE_FINISHED);
  const auto flat = read_jpeg(dir / "jpeg/out/clear.png.jpg");
  CHECK(*std::min_element(flat.bytes.begin(), flat.bytes.end()) >= 253);
}

TEST_CASE("the watermark lies where it should, blended as it should") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  write_png(in + "/flat.png", {60, 40, 3, std::vector<uint8_t>(7200, 55)});
  auto params = one_pass(in, "60");
  params["watermark"] = "l";
  params["opacity"] = "0.25";
  Driver task(plugin(), dir.path(), params);
  REQUIRE(task.run(kManySteps) == FREERIDE_FINISHED);
  const auto got = read_png(dir / "out/flat.png");
  // An L of 5 x 7 dots of 60/3/5 = 4 pixels, two dots from the right and lower edges: a bar at the left, a bar at the
  // bottom.
  const uint32_t left = 60 - 4 * 7;
  const uint32_t top = 40 - 4 * 9;
  unsigned marked = 0;
  for (uint32_t y = 0; y < 40; ++y) {
    for (uint32_t x = 0; x < 60; ++x) {
      const bool inside = x >= left && x < left + 20 && y >= top && y < top + 28;
      const bool on = inside && (x < left + 4 || y >= top + 24);
      marked += on ? 1 : 0;
      CHECK(got.at(x, y, 0) == (on ? 105 : 55));  // 55 + 0.25 * (255 - 55)
    }
  }
  CHECK(marked == 4 * 28 + 16 * 4);
}

TEST_CASE("a watermark wider than the picture is cut off, not written past it") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  write_png(in + "/small.png", make_picture(9, 5, 4, 5));
  auto params = one_pass(in, "9");
  params["watermark"] = std::string(1000, 'W') + "\xff\n";
  Driver task(plugin(), dir.path(), params);
  CHECK(task.run(kManySteps) == FREERIDE_FINISHED);
  CHECK(read_png(dir / "out/small.png").width == 9);
}

TEST_CASE("pauses change nothing in the result") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  write_jpeg(in + "/a.jpg", make_picture(400, 300, 3, 6), Kind::kProgressive);
  write_png(in + "/b.png", make_picture(300, 400, 4, 7), true);
  Params params{{"input", in}, {"width", "123"}, {"repeat", "0"}, {"step_ms", "0.05"}};
  Driver often(plugin(), dir / "often", params);
  REQUIRE(often.run(kManySteps, 1) == FREERIDE_FINISHED);
  params["step_ms"] = "100";
  Driver never(plugin(), dir / "never", params);
  REQUIRE(never.run(kManySteps, kManySteps) == FREERIDE_FINISHED);
  for (const auto* name : {"/out/a.jpg", "/out/b.png"})
    CHECK(slurp(dir / "often" + name) == slurp(dir / "never" + name));
}

TEST_CASE("what is no picture is skipped with a line, the others are done") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  write_jpeg(in + "/good.jpg", make_picture(64, 64, 3, 8));
  write_png(in + "/good.png", make_picture(64, 64, 3, 8));
  const auto jpeg = slurp(in + "/good.jpg");
  const auto png = slurp(in + "/good.png");
  spit(in + "/cut.jpg", jpeg.substr(0, jpeg.size() / 2));
  spit(in + "/cut.png", png.substr(0, png.size() / 2));
  spit(in + "/empty.png", "");
  spit(in + "/text.jpg", "no picture at all");
  spit(in + "/magic.jpg", "\xff\xd8\xff");
  write_jpeg(in + "/cmyk.jpg", make_picture(64, 64, 3, 9), Kind::kCmyk);
  write_png(in + "/large.png", {2000, 1001, 3, std::vector<uint8_t>(6006000)});
  write_png(in + "/tall.png", {1, 5000, 3, std::vector<uint8_t>(15000)});
  spit(in + "/other.txt", "not looked at");
  fs::create_directory(in + "/folder.jpg");
  REQUIRE(::mkfifo((in + "/pipe.jpg").c_str(), 0600) == 0);  // opening it would wait for ever
  auto params = one_pass(in, "32");
  params["max_megapixels"] = "2";
  params["width"] = "640";
  Driver task(plugin(), dir.path(), params);
  REQUIRE(task.run(kManySteps) == FREERIDE_FINISHED);
  CHECK(task.metrics.at("images") == 2);
  CHECK(task.metrics.at("skipped") == 8);
  CHECK(task.logged("cut.jpg: Premature end of JPEG file"));
  CHECK(task.logged("cut.png: "));
  CHECK(task.logged("empty.png: it is neither a JPEG nor a PNG"));
  CHECK(task.logged("text.jpg: it is neither a JPEG nor a PNG"));
  CHECK(task.logged("magic.jpg: "));
  CHECK(task.logged("cmyk.jpg: CMYK is not supported"));
  CHECK(task.logged("large.png: it has 2000 x 1001 pixels; raise max_megapixels"));
  CHECK(task.logged("tall.png: its result would be"));
  CHECK(task.stop() == FREERIDE_OK);
  CHECK(std::distance(fs::directory_iterator(dir / "out"), fs::directory_iterator()) ==
        2);  // no half results, no .part
}

TEST_CASE("damaged bytes never do more than spoil their picture") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  write_jpeg(in + "/0.jpg", make_picture(40, 30, 3, 10), Kind::kProgressive);
  write_jpeg(in + "/1.jpg", make_picture(40, 30, 3, 10));
  write_png(in + "/2.png", make_picture(40, 30, 4, 10), true);
  write_png(in + "/3.png", make_picture(40, 30, 3, 10));
  std::mt19937 random(11);
  int made = 4;
  for (const auto* name : {"/0.jpg", "/1.jpg", "/2.png", "/3.png"}) {
    const auto good = slurp(in + name);
    for (int i = 0; i < 150; ++i, ++made) {
      auto bad = good;
      // Headers are where sizes come from: half of the damage goes there.
      const size_t reach = i % 2 == 0 ? std::min<size_t>(bad.size(), 200) : bad.size();
      for (int k = 0; k <= i % 3; ++k) bad[random() % reach] = static_cast<char>(random());
      spit(in + "/bad" + std::to_string(made) + (name + 2), bad);
    }
  }
  auto params = one_pass(in, "20");
  params["max_megapixels"] = "1";
  Driver task(plugin(), dir.path(), params);
  REQUIRE(task.run(kManySteps) == FREERIDE_FINISHED);
  CHECK(task.metrics.at("images") + task.metrics.at("skipped") == made);
  CHECK(task.metrics.at("skipped") > 0);
  CHECK(fs::exists(dir / "out/3.png"));
}

TEST_CASE("a folder without one usable picture fails the task instead of spinning on it") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  spit(in + "/a.jpg", "x");
  spit(in + "/b.png", "y");
  Driver task(plugin(), dir.path(), {{"input", in}});  // repeat is on
  CHECK(task.run(kManySteps) == FREERIDE_ERROR);
  CHECK(task.failure == "none of the pictures in " + in + " can be used");
}

TEST_CASE("folders that cannot be are refused with a sentence") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  Driver nothing(plugin(), dir.path(), {{"input", in}});
  CHECK(nothing.create() == FREERIDE_UNAVAILABLE);
  CHECK_THAT(nothing.failure, Catch::StartsWith("no .jpg, .jpeg or .png file in "));
  Driver missing(plugin(), dir.path(), {{"input", dir / "missing"}});
  CHECK(missing.create() == FREERIDE_UNAVAILABLE);
  CHECK_THAT(missing.failure, Catch::StartsWith("cannot read the folder "));
  write_png(in + "/a.png", make_picture(8, 8, 3, 1));
  Driver same(plugin(), dir.path(), {{"input", in}, {"output", in + "/."}});
  CHECK(same.create() == FREERIDE_BAD_PARAMETER);
  CHECK_THAT(same.failure, Catch::StartsWith("input and output are the same folder"));
  spit(dir / "file", "");
  Driver file(plugin(), dir.path(), {{"input", in}, {"output", dir / "file/out"}});
  CHECK(file.create() == FREERIDE_UNAVAILABLE);
  CHECK_THAT(file.failure, Catch::StartsWith("cannot make the folder "));
  // The disk's side fails: that is no fault of the picture.
  make_folder(dir / "out/a.png.part");
  Driver unwritable(plugin(), dir.path(), {{"input", in}});
  CHECK(unwritable.run(kManySteps) == FREERIDE_ERROR);
  CHECK_THAT(unwritable.failure, Catch::StartsWith("cannot write "));
}

TEST_CASE("a stop in the middle of a picture leaves no half of it") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  write_png(in + "/a.png", make_picture(2000, 2000, 3, 1));
  Driver task(plugin(), dir.path(), {{"input", in}, {"width", "1900"}, {"step_ms", "0.05"}});
  REQUIRE(task.create() == FREERIDE_OK);
  REQUIRE(task.init() == FREERIDE_OK);
  REQUIRE(task.start() == FREERIDE_OK);
  while (!fs::exists(dir / "out/a.png.part")) REQUIRE(task.step() == FREERIDE_OK);
  CHECK(task.stop() == FREERIDE_OK);
  CHECK(fs::is_empty(dir / "out"));
  CHECK(task.logged("0 pictures written"));
}

TEST_CASE("without a folder the documented test pictures are made, then worked on for ever") {
  TempDir dir;
  Driver task(plugin(), dir.path(), {{"step_ms", "100"}, {"width", "100"}});
  REQUIRE(task.create() == FREERIDE_OK);
  REQUIRE(task.init() == FREERIDE_OK);
  REQUIRE(task.start() == FREERIDE_OK);
  while (task.metrics["images"] < 7) REQUIRE(task.step() == FREERIDE_OK);
  CHECK(task.metrics.at("passes") >= 1);
  CHECK(std::distance(fs::directory_iterator(dir / "in"), fs::directory_iterator()) == 6);
  const auto gradient = read_png(dir / "in/gradient-1.png");
  CHECK(gradient.width == 1600);
  CHECK(gradient.height == 1200);
  CHECK(gradient.at(800, 600, 0) == 127);
  CHECK(gradient.at(1599, 0, 0) == 254);
  CHECK(gradient.at(0, 1199, 1) == 254);
  const auto rings = read_jpeg(dir / "out/rings-1.jpg");
  CHECK(rings.width == 100);
  CHECK(rings.height == 75);
}

TEST_CASE("a replaced task goes on with the next picture") {
  TempDir dir;
  const auto in = make_folder(dir / "in");
  for (const auto* name : {"/a.png", "/b.png", "/c.png", "/d.png"})
    write_png(in + name, make_picture(40, 30, 3, 6), true);
  const Params params{{"input", in}, {"width", "123"}, {"repeat", "0"}, {"step_ms", "0.05"}};
  std::string state;
  {
    Driver task(plugin(), dir / "first", params);
    REQUIRE(task.create() == FREERIDE_OK);
    REQUIRE(task.init() == FREERIDE_OK);
    REQUIRE(task.start() == FREERIDE_OK);
    while (task.metrics["images"] < 2) REQUIRE(task.step() == FREERIDE_OK);
    REQUIRE(task.pause() == FREERIDE_OK);
    REQUIRE(task.save(state) == FREERIDE_OK);
  }
  Driver next(plugin(), dir / "next", params);
  REQUIRE(next.create() == FREERIDE_OK);
  REQUIRE(next.init() == FREERIDE_OK);
  CHECK(next.restore("x") == FREERIDE_ERROR);
  REQUIRE(next.restore(state) == FREERIDE_OK);
  REQUIRE(next.start() == FREERIDE_OK);
  freeride_status status = FREERIDE_OK;
  while (status == FREERIDE_OK) status = next.step();
  CHECK(status == FREERIDE_FINISHED);
  CHECK(next.metrics["images"] == 4);
  CHECK_FALSE(fs::exists(dir / "next/out/a.png"));
  CHECK(fs::exists(dir / "next/out/d.png"));
}

TEST_CASE("a synthetic picture needs no folder, and is written once however often it is computed") {
  TempDir dir;
  Driver task(plugin(), dir.path(), {{"synthetic", "300"}, {"width", "60"}, {"step_ms", "0.05"}});
  REQUIRE(task.create() == FREERIDE_OK);
  REQUIRE(task.init() == FREERIDE_OK);
  REQUIRE(task.start() == FREERIDE_OK);
  while (task.metrics["images"] < 1) REQUIRE(task.step() == FREERIDE_OK);
  const auto first = fs::last_write_time(dir / "out/synthetic.jpg");
  while (task.metrics["images"] < 4) REQUIRE(task.step() == FREERIDE_OK);
  CHECK(fs::last_write_time(dir / "out/synthetic.jpg") == first);
  CHECK(task.metrics["megapixels"] == Approx(4 * 0.09));
  REQUIRE(task.stop() == FREERIDE_OK);
  CHECK(read_jpeg(dir / "out/synthetic.jpg").height == 60);
}

TEST_CASE("input and synthetic exclude each other, and a CPU device has no CUDA") {
  TempDir dir;
  Driver both(plugin(), dir.path(), {{"synthetic", "300"}, {"input", dir.path()}});
  CHECK(both.create() == FREERIDE_BAD_PARAMETER);
  CHECK_THAT(both.failure, Catch::Contains("give one of them"));
  Driver cuda(plugin(), dir.path(), {{"synthetic", "300"}, {"backend", "cuda"}});
  CHECK(cuda.create() == FREERIDE_BAD_PARAMETER);
  CHECK_THAT(cuda.failure, Catch::Contains("which is no GPU"));
}
