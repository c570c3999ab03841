// old_glibc.c beside the glibc that it stands in for.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <set>

extern "C" uint32_t arc4random(void) noexcept;

TEST_CASE("random numbers of an old glibc differ") {
  std::set<uint32_t> numbers;
  for (int i = 0; i < 100; ++i) numbers.insert(arc4random());
  CHECK(numbers.size() > 95);
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
TEST_CASE("the unwinder finds an object's frames as with glibc's own search") {
  const auto theirs = reinterpret_cast<int (*)(void*, dl_find_object*)>(
      dlsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "_dl_find_object"));
  REQUIRE(theirs != nullptr);
  REQUIRE(theirs != &_dl_find_object);
  int on_the_stack = 0;  // in no object
  for (void* address : {dlsym(RTLD_DEFAULT, "malloc"), dlsym(RTLD_DEFAULT, "__cxa_throw"),
                        dlsym(RTLD_DEFAULT, "_Unwind_RaiseException"),
                        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(&arc4random)),
                        static_cast<void*>(&on_the_stack), static_cast<void*>(nullptr)}) {
    dl_find_object ours{}, glibcs{};
    const int found = theirs(address, &glibcs);
    CHECK(_dl_find_object(address, &ours) == found);
    if (found != 0) continue;
    CHECK(ours.dlfo_eh_frame == glibcs.dlfo_eh_frame);
    CHECK(ours.dlfo_map_start <= address);
    CHECK(ours.dlfo_map_end > address);
  }
}
#endif
