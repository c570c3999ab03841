// Pages that a trainer or a plugin made: any bytes, of any length, sealed or not. The first byte says which page and
// how.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "acting/answers.hpp"
#include "daemon/phase_name.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/utf8.hpp"
#include "freeride/pages/mapping.hpp"
#include "fuzz.hpp"
#include "tasks/task_report.hpp"

using namespace freeride;

namespace {

Fd memfd(const uint8_t* data, size_t size, bool whole, bool sealed, size_t page_bytes) {
  Fd fd(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  fuzz::must(fd.valid() && write(fd.get(), data, size) == static_cast<ssize_t>(size));
  if (whole) fuzz::must(ftruncate(fd.get(), static_cast<off_t>(std::max(size, page_bytes))) == 0);
  if (sealed) fuzz::must(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  return fd;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > (1u << 17)) return 0;
  const uint8_t how = *data++;
  --size;
  const auto page = [&](size_t bytes) { return memfd(data, size, (how & 4) != 0, (how & 8) == 0, bytes); };
  switch (how & 3) {
    case 0: {
      const Fd fd = page(sizeof(freeride_bubble_page));
      const auto mapped = pages::map_page<freeride_bubble_page>(fd.get());
      if (!mapped.ok()) break;
      const auto identity = pages::check_bubble_page(**mapped);
      if (identity.ok()) fuzz::must(!identity->job.empty() && !identity->device.empty() && identity->stages > 0);
      for (uint32_t slot = 0; slot <= FREERIDE_MAX_PHASES; ++slot) {
        const std::string name = worker::phase_name(**mapped, FREERIDE_PHASE_WAIT(slot));
        fuzz::must(name.size() < sizeof(freeride_phase::name) && is_utf8(name));
      }
      if (const auto phase = worker::present_phase(**mapped, INT64_MAX)) fuzz::must(phase->length_ns > 0);
      break;
    }
    case 1: {
      const Fd fd = page(sizeof(freeride_lease_page));
      const auto mapped = pages::map_page<freeride_lease_page>(fd.get());
      pages::Lease lease;
      uint32_t sequence = 0;
      if (mapped.ok() && pages::read_lease(**mapped, lease, sequence, 3)) fuzz::must(sequence % 2 == 0);
      break;
    }
    case 2: {
      const Fd fd = page(sizeof(freeride_answer_page));
      auto mapped = pages::map_page<freeride_answer_page>(fd.get());
      if (!mapped.ok()) break;
      worker::TaskSource source;
      source.answer = std::move(*mapped);
      worker::Answers answers(source);
      answers.read();
      (void)answers.take_state_change();
      (void)answers.in_steps_ns(1'000'000'000);
      fuzz::must(worker::state_name(answers.state) != nullptr);
      for (const auto& [name, value] : worker::counters_of(source, {}).metrics) fuzz::must(!name.empty());
      break;
    }
    default: {
      const Fd fd = page(sizeof(freeride_answer_page));
      (void)pages::map_page_writable<freeride_answer_page>(fd.get());
      break;
    }
  }
  return 0;
}
