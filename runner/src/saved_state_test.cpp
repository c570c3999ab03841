// What a plugin hands over as its state, without any process.
#include "saved_state.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "freeride/pages.h"

using namespace freeride::runner;

namespace {

// Hands over parts of these sizes; of those that are too large there need not be a byte.
freeride_status save_parts(void* task, const freeride_state_sink* sink) {
  for (const uint64_t size : *static_cast<std::vector<uint64_t>*>(task)) {
    const std::string part(size < 1024 ? size : 0, 'x');
    if (const auto status = sink->write(sink->context, part.data(), size); status != FREERIDE_OK) return status;
  }
  return FREERIDE_OK;
}

freeride_status collect(std::vector<uint64_t> parts, std::string& bytes) {
  const freeride_state state{sizeof(freeride_state), 1, &save_parts, nullptr};
  return collect_state(state, &parts, bytes);
}

}  // namespace

TEST_CASE("saved state: parts are put together, and too much is refused before it is copied") {
  std::string bytes;
  CHECK(collect({3, 0, 4}, bytes) == FREERIDE_OK);
  CHECK(bytes == "xxxxxxx");
  CHECK(collect({FREERIDE_STATE_MOST_BYTES + 1}, bytes) == FREERIDE_OUT_OF_MEMORY);
  CHECK(collect({3, FREERIDE_STATE_MOST_BYTES - 2}, bytes) == FREERIDE_OUT_OF_MEMORY);
  CHECK(collect({UINT64_MAX}, bytes) == FREERIDE_OUT_OF_MEMORY);
  CHECK(FREERIDE_STATE_MOST_BYTES >= uint64_t{300} << 20);  // vgg19's in bfloat16
}
