#include "driver_watch.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"

using namespace freeride;
using namespace freeride::runner;
namespace fs = std::filesystem;

namespace {

/// A folder with files of these names, which ends with it.
class Files {
 public:
  Files() {
    std::string name = "/tmp/driver-watch-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Files() { fs::remove_all(path_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  std::string make(const std::string& name) const {
    const fs::path file = path_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "a library";
    return file;
  }

 private:
  fs::path path_;
};

/// A file in this process's memory, as a library that it has loaded.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    at_ = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    REQUIRE(at_ != MAP_FAILED);
  }
  ~Mapped() { munmap(at_, 4096); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  void* at_;
};

std::optional<std::string> judged(const std::string& shim, const std::string& real) {
  DriverWatch watch(shim, real);
  CHECK_FALSE(watch.look({getpid()}, 0));  // not before it has had time to load anything
  return watch.look({getpid()}, kNsPerSec);
}

}  // namespace

TEST_CASE("mapped files by the driver's name, each once", "[driver_watch]") {
  CHECK(mapped_drivers("").empty());
  const std::string maps =
      "55d0-55d1 r--p 00000000 fe:00 123 /usr/bin/python3.11\n"
      "7f10-7f11 r--p 00000000 fe:00 7 /usr/lib/libcuda.so.580.159.04\n"
      "7f11-7f12 r-xp 00001000 fe:00 7 /usr/lib/libcuda.so.580.159.04\n"
      "7f12-7f13 r--p 00000000 fe:00 8 /opt/my env/lib/libcuda.so\n"
      "7f13-7f14 r--p 00000000 fe:00 9 /usr/lib/libcudart.so.13\n"
      "7f14-7f15 r--p 00000000 fe:00 10 /usr/lib/libcuda.sock\n"
      "7f15-7f16 r--p 00000000 fe:00 11 /tmp/libcuda.so.1 (deleted)\n"
      "7f16-7f17 rw-p 00000000 00:00 0 [heap]\n"
      "7f17-7f18 rw-p 00000000 00:00 0";
  CHECK(mapped_drivers(maps) ==
        std::vector<std::string>{"/usr/lib/libcuda.so.580.159.04", "/opt/my env/lib/libcuda.so"});
}

TEST_CASE("NVML opens the driver's devices and computes nothing", "[driver_watch]") {
  CHECK_FALSE(computes_on_gpu({"/dev/nvidiactl", "/dev/nvidia0", "socket:[3]"}));
  CHECK(computes_on_gpu({"/dev/nvidiactl", "/dev/nvidia-uvm"}));
}

TEST_CASE("a process goes past the shim by another libcuda, or by the driver itself", "[driver_watch]") {
  const Files files;
  const std::string shim = files.make("libcuda.so.1"), real = files.make("real/libcuda.so.580");
  const std::string other = files.make("conda/lib/libcuda.so.1");
  CHECK_FALSE(judged(shim, real));  // it has none
  {
    const Mapped alone(real);
    const auto found = judged(shim, real);
    REQUIRE(found);
    CHECK(found->find("without the system's libcuda.so.1") != std::string::npos);
    const Mapped ours(shim);
    CHECK_FALSE(judged(shim, real));  // the shim opens the driver
    const Mapped second(other);
    const auto named = judged(shim, real);
    REQUIRE(named);
    CHECK(named->find(other) != std::string::npos);
  }
  CHECK_FALSE(judged(shim, files.make("real/libcuda.so.580") + "-gone"));  // nothing to compare with
}

TEST_CASE("looks at a process become rare, and one that ends is forgotten", "[driver_watch]") {
  const Files files;
  const std::string shim = files.make("libcuda.so.1"), real = files.make("real/libcuda.so.1");
  DriverWatch watch(shim, real);
  CHECK_FALSE(watch.look({getpid()}, 0));
  CHECK_FALSE(watch.look({getpid()}, kNsPerSec));
  const Mapped second(files.make("conda/libcuda.so.1"));
  CHECK_FALSE(watch.look({getpid()}, kNsPerSec + 1));  // too soon
  CHECK(watch.look({getpid()}, 2 * kNsPerSec));
  CHECK_FALSE(watch.look({}, 3 * kNsPerSec));
  CHECK_FALSE(watch.look({getpid()}, 4 * kNsPerSec));  // another process of that number
  CHECK(watch.look({getpid()}, 5 * kNsPerSec));
}
