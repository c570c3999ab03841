#include "freeride/base/result.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cassert>
#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <string>

#include "freeride/base/fd.hpp"

using namespace freeride;

namespace {

// What a child that does this says on stderr before it aborts; "" when it does not abort.
std::string last_words(const std::function<void()>& misuse) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const Fd out(ends[0]);
  Fd in(ends[1]);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);  // the test's own handler would report it
    dup2(in.get(), STDERR_FILENO);
    misuse();
    _exit(0);
  }
  in.reset();
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = read(out.get(), buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? text : "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Not to be seen through by the compiler.
Result<std::string> broken() {
  return Error{Code::kNotFound, "no file x", "make one"};
}

}  // namespace

TEST_CASE("a Result that is read on the wrong side ends the program and says what the error was") {
  CHECK(contains(last_words([] { (void)broken().value(); }), "an error was read: no file x; make one"));
  CHECK(contains(last_words([] {
                   const auto result = broken();
                   (void)result->size();
                 }),
                 "no file x"));
  CHECK(contains(last_words([] { (void)Result<int>(1).error(); }), "a success was read as an error"));
  CHECK(contains(last_words([] { (void)Status().error(); }), "a success was read as an error"));
  CHECK(last_words([] { (void)Result<int>(1).value(); }).empty());
}

TEST_CASE("a test's build runs its assertions") {
  CHECK(contains(last_words([] { assert(broken().ok()); }), "broken().ok()"));
}
