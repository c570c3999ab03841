// Structs of the plugin ABI grow at their end for ever: reading one that may be shorter or longer than today's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace freeride::runner {

/// A copy of the struct at `theirs`, as far as its `struct_size` says that it goes; what it ends before is null.
/// Whoever made it owns the original; no byte past its end is read.
template <class Table>
Table read_grown(const Table& theirs) {
  static_assert(std::is_trivially_copyable_v<Table> && offsetof(Table, struct_size) == 0);
  Table table{};
  std::memcpy(static_cast<void*>(&table), &theirs, std::min<size_t>(theirs.struct_size, sizeof(Table)));
  return table;
}

}  // namespace freeride::runner
