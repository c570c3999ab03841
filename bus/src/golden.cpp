// bus-golden DIRECTORY: writes one encoded sample of every wire type there, as "<Type>.msgpack", and what they must
// decode to, as "expected.json". Run by hand when a field has been appended; the files are part of the tree.
#include <cstdio>
#include <fstream>

#include "freeride/bus/json.hpp"
#include "samples.hpp"

namespace freeride::bus {
namespace {

bool write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.close();
  if (!file) std::fprintf(stderr, "bus-golden: cannot write %s\n", path.c_str());
  return static_cast<bool>(file);
}

int run(const std::string& folder) {
  nlohmann::json expected = nlohmann::json::object();
  bool ok = true;
  const Envelope envelope = test::sample<Envelope>();
#define WRITE_EVENT(T)                                                               \
  ok = write(folder + "/" #T ".msgpack", encode(envelope, test::sample<T>())) && ok; \
  expected[#T] = to_json(envelope, test::sample<T>());
#define WRITE_PLAIN(T)                                                     \
  ok = write(folder + "/" #T ".msgpack", encode(test::sample<T>())) && ok; \
  expected[#T] = to_json(test::sample<T>());
  FREERIDE_BUS_EVENTS(WRITE_EVENT)
  FREERIDE_BUS_COMMANDS(WRITE_PLAIN)
  FREERIDE_BUS_PARTS(WRITE_PLAIN)
#undef WRITE_EVENT
#undef WRITE_PLAIN
  ok = write(folder + "/expected.json", expected.dump(1) + "\n") && ok;
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace freeride::bus

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bus-golden DIRECTORY\n");
    return 2;
  }
  return freeride::bus::run(argv[1]);
}
