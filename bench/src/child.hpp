// Child: a program started by a benchmark, ended with it.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace freeride::bench {

class Child {
 public:
  /// Starts `arguments[0]`; waits until a line with `ready` comes out of its stdout or stderr. Ends the benchmark if it
  /// does not.
  Child(std::vector<std::string> arguments, const std::string& ready) {
    int out[2];
    if (::pipe(out) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      cpu_set_t all;  // the benchmark keeps itself to a core, but not its children
      std::memset(&all, 0xff, sizeof all);
      ::sched_setaffinity(0, sizeof all, &all);
      ::dup2(out[1], 1);
      ::dup2(out[1], 2);
      ::close(out[0]);
      ::close(out[1]);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    std::string text;
    char letter = 0;
    while (text.find(ready) == std::string::npos) {
      if (::read(out[0], &letter, 1) != 1) {
        std::fprintf(stderr, "bench: %s did not start:\n%s\n", arguments[0].c_str(), text.c_str());
        std::exit(1);
      }
      text += letter;
    }
    // Its later lines go nowhere; a full pipe must not stop it.
    ::fcntl(out[0], F_SETFL, O_NONBLOCK);
    output_ = out[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { stop(SIGTERM); }

  pid_t pid() const { return pid_; }
  void drain() const {
    char buffer[4096];
    while (::read(output_, buffer, sizeof buffer) > 0) {
    }
  }
  void stop(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    int status = 0;
    for (int i = 0; i < 500 && ::waitpid(pid_, &status, WNOHANG) == 0; ++i) {
      drain();
      ::usleep(10'000);
      if (i == 400) ::kill(pid_, SIGKILL);
    }
    pid_ = -1;
    ::close(output_);
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

}  // namespace freeride::bench
