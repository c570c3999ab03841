#include "freeride/policy/task_files.hpp"

#include <catch2/catch.hpp>

using namespace freeride::policy;
using Catch::Contains;

TEST_CASE("task files: paths that could be in the sandbox's way, or lead elsewhere, are refused", "[task_files]") {
  CHECK(check_files({}).ok());
  CHECK(check_files({{"/data/in", "", false}, {"/data/out", "/out", true}}).ok());
  CHECK(check_files({{"/", "/all", false}}).ok());
  for (const char* bad : {"", "in", "./in", "/a/../b", "/a/./b", "/a//b", "/a/", "/a\nb", "/.."}) {
    INFO(bad);
    CHECK_FALSE(check_files({{bad, "/x", false}}).ok());
    if (*bad != '\0') CHECK_FALSE(check_files({{"/x", bad, false}}).ok());
  }
  for (const char* taken : {"/", "/proc", "/proc/1", "/usr/lib", "/etc/ld.so.preload", "/freeride/freeride-runner",
                            "/scratch", "/scratch/a", "/tmp", "/dev/shm", "/lib/x", "/lib64"}) {
    INFO(taken);
    CHECK_FALSE(check_files({{"/x", taken, false}}).ok());
  }
  CHECK(check_files({{"/x", "/library", false}}).ok());
  CHECK(check_files({{"/x", "/tmp/a", false}}).ok());
  CHECK_FALSE(check_files({{"/x", "/a", false}, {"/y", "/a", false}}).ok());
  CHECK_FALSE(check_files({{"/x", "/a/b", false}, {"/y", "/a", true}}).ok());
  CHECK(check_files({{"/x", "/ab", false}, {"/y", "/a", true}}).ok());
  CHECK_FALSE(check_files(std::vector<WantedFile>(kMostFiles + 1, {"/x", "/a", false})).ok());
  CHECK(check_working_dir("").ok());
  CHECK(check_working_dir("/data").ok());
  CHECK_FALSE(check_working_dir("data").ok());
}

TEST_CASE("task files: no variable takes over what runs the task", "[task_files]") {
  for (const char* name :
       {"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "FREERIDE_RUN_DIR", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT", "GLIBC_TUNABLES",
        "GCONV_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_INJECTION64_PATH", "ASAN_OPTIONS", "MALLOC_CHECK_"}) {
    const auto refused = check_environment({{name, "x"}});
    INFO(name);
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.error().message, Contains(name));
  }
  CHECK(check_environment({{"HF_HOME", "/data/hf"}, {"PYTHONHASHSEED", "0"}, {"LDAP", "x"}, {"A", ""}}).ok());
  for (const char* name : {"", "A B", "A=B", "1A", "Ä"}) CHECK_FALSE(check_environment({{name, "x"}}).ok());
  CHECK_FALSE(check_environment({{"A", std::string("x\0y", 3)}}).ok());
}

TEST_CASE("task files: what lies in no opened folder is not given", "[task_files]") {
  const std::vector<std::string> open{"/data", "/data/deep", "/srv/"};
  REQUIRE(below("/data/deep/x/y", open).ok());
  CHECK(below("/data/deep/x/y", open)->folder == 1);
  CHECK(below("/data/deep/x/y", open)->rest == "x/y");
  CHECK(below("/data", open)->rest == ".");
  CHECK(below("/srv/a", open)->rest == "a");
  CHECK_FALSE(below("/database", open).ok());
  CHECK_FALSE(below("/home", open).ok());
  CHECK_FALSE(below("/home", {}).ok());
  CHECK(below("/home/a", {"/"})->rest == "home/a");
}

TEST_CASE("task files: rights are taken on from the kernel's word only, and never root's of another host",
          "[task_files]") {
  FileClaim claim{1000, "here", "here", false, 0, true};
  CHECK(may_take_rights(claim).ok());
  claim.uid = -1;
  CHECK_FALSE(may_take_rights(claim).ok());
  claim = {1000, "there", "here", false, 0, true};
  CHECK_FALSE(may_take_rights(claim).ok());
  claim.users_of_all = true;
  CHECK(may_take_rights(claim).ok());
  claim.uid = 0;
  CHECK_FALSE(may_take_rights(claim).ok());
  claim = {1000, "here", "here", false, 0, false};
  CHECK_FALSE(may_take_rights(claim).ok());
  claim = {1000, "here", "here", false, 1001, true};
  CHECK_FALSE(may_take_rights(claim).ok());
  claim.worker_uid = 1000;
  CHECK(may_take_rights(claim).ok());
}
