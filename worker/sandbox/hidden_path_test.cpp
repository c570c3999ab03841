#include "sandbox/hidden_path.hpp"

#include <catch2/catch.hpp>

using freeride::worker::hidden_path;

TEST_CASE("a path that a task cannot open is named where its sandbox does not show it", "[sandbox]") {
  const std::vector<std::string> visible{"/scratch", "/usr/lib", "/data/"};
  CHECK(hidden_path("cannot open list '/tmp/list.txt'", visible) == "/tmp/list.txt");
  CHECK(hidden_path("FileNotFoundError: [Errno 2] No such file or directory: '/home/a/x.bin' (line 3)", visible) ==
        "/home/a/x.bin");
  CHECK(hidden_path("cannot open /scratch/a, then cannot open /mnt/b.", visible) == "/mnt/b");
  CHECK(hidden_path("cannot open /scratchy", visible) == "/scratchy");
  CHECK(hidden_path("cannot open /scratch/list", visible).empty());
  CHECK(hidden_path("cannot open /data/list: No such file or directory", visible).empty());
  CHECK(hidden_path("wrote 3 items to /tmp/list.txt", visible).empty());
  CHECK(hidden_path("cannot open a/b: 5 items/s", visible).empty());
  CHECK(hidden_path("not found", visible).empty());
  CHECK(hidden_path("cannot open /", visible).empty());
}
