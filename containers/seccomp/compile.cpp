// Compiles side-task.policy to BPF, as a C++ header: what a side task's processes install needs no library and no file
// at run time. Usage: freeride-seccomp-compile POLICY HEADER
#include <fcntl.h>
#include <linux/filter.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

[[noreturn]] void fail(const std::string& text) {
  std::cerr << "freeride-seccomp-compile: " << text << "\n";
  std::exit(1);
}

struct Rule {
  std::string verb;
  int error = 0;
};

using Policy = std::map<int, Rule>;  // by system call

int error_number(const std::string& name) {
  const std::map<std::string, int> known{{"EPERM", EPERM}, {"EACCES", EACCES}, {"ENOSYS", ENOSYS}};
  const auto it = known.find(name);
  if (it == known.end()) fail("'" + name + "' is no error that this knows");
  return it->second;
}

Policy read_policy(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail("cannot read " + path);
  Policy policy;
  for (std::string line; std::getline(in, line);) {
    line = line.substr(0, line.find('#'));
    std::istringstream words(line);
    Rule rule;
    if (!(words >> rule.verb)) continue;
    if (rule.verb == "refuse") {
      std::string name;
      words >> name;
      rule.error = error_number(name);
    } else if (rule.verb != "allow" && rule.verb != "supervisor" && rule.verb != "process" && rule.verb != "session" &&
               rule.verb != "filtered") {
      fail("'" + rule.verb + "' is no verb");
    }
    for (std::string name; words >> name;) {
      const int call = seccomp_syscall_resolve_name(name.c_str());
      if (call == __NR_SCMP_ERROR) fail("there is no system call '" + name + "'");
      if (call < 0) continue;  // of another architecture
      if (!policy.emplace(call, rule).second) fail("'" + name + "' is named twice");
    }
  }
  return policy;
}

struct Context {
  scmp_filter_ctx ctx;
  void add(uint32_t action, int call, std::vector<scmp_arg_cmp> args = {}) const {
    const int status = seccomp_rule_add_array(ctx, action, call, static_cast<unsigned>(args.size()), args.data());
    if (status != 0) fail("rule for call " + std::to_string(call) + ": " + strerror(-status));
  }
};

constexpr uint64_t kLow32 = 0xffffffff;  // the kernel looks at no more of an int argument

scmp_arg_cmp equals(unsigned arg, uint64_t value) {
  return SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, kLow32, value);
}

// Who installs a filter.
enum class Whose { kSupervisor, kPlugin, kProgram };

// What a side task may do to itself only, or in one way only.
void add_filtered(const Context& to, Whose whose) {
  const auto call = [](const char* name) { return seccomp_syscall_resolve_name(name); };
  const uint32_t allow = SCMP_ACT_ALLOW, refuse = SCMP_ACT_ERRNO(EPERM);
  if (whose == Whose::kProgram) {
    // Threads and processes, in the namespaces that there are. Others: ENOSYS, as on a kernel that lacks them.
    constexpr uint64_t kNamespaces =
        CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
    to.add(allow, call("clone"), {SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, kNamespaces, 0)});
  } else {
    // Threads, not processes.
    to.add(allow, call("clone"), {SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD)});
    to.add(refuse, call("clone"), {SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0)});
  }
  // No reading or writing past the page cache: that is the disk's time, which training needs.
  constexpr uint64_t kDirect = O_DIRECT;
  const uint32_t no_such = SCMP_ACT_ERRNO(EINVAL);  // as a file system answers that lacks it
  // No file that runs with its owner's rights: in a folder that the task may write to, that is its submitter.
  constexpr uint64_t kOwners = S_ISUID | S_ISGID;
  const auto no_owners = [&](unsigned arg) { return SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, kOwners, 0); };
  for (const auto& [name, arg] : {std::pair("open", 1U), std::pair("openat", 2U)}) {
    if (call(name) < 0) continue;  // of another architecture
    // The mode behind the flags means something only to a call that may make a file, and is anything else otherwise.
    constexpr uint64_t kMakes = O_CREAT | (O_TMPFILE & ~O_DIRECTORY);
    to.add(allow, call(name), {SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, kDirect | kMakes, 0)});
    for (const uint64_t makes : {uint64_t{O_CREAT}, kMakes & ~uint64_t{O_CREAT}, kMakes})
      to.add(allow, call(name), {SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, kDirect | kMakes, makes), no_owners(arg + 1)});
    for (const uint64_t bits : {uint64_t{S_ISUID}, uint64_t{S_ISGID}, kOwners}) {
      for (const uint64_t makes : {uint64_t{O_CREAT}, kMakes & ~uint64_t{O_CREAT}, kMakes}) {
        to.add(refuse, call(name),
               {SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, kDirect | kMakes, makes),
                SCMP_CMP64(arg + 1, SCMP_CMP_MASKED_EQ, kOwners, bits)});
      }
    }
    to.add(no_such, call(name), {SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, kDirect, kDirect)});
  }
  for (const auto& [name, arg] :
       {std::pair("creat", 1U), std::pair("chmod", 1U), std::pair("fchmod", 1U), std::pair("fchmodat", 2U)}) {
    if (call(name) < 0) continue;  // of another architecture
    to.add(allow, call(name), {no_owners(arg)});
    for (const uint64_t bits : {uint64_t{S_ISUID}, uint64_t{S_ISGID}, kOwners})
      to.add(refuse, call(name), {SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, kOwners, bits)});
  }
  to.add(allow, call("fcntl"), {equals(1, F_SETFL), SCMP_CMP64(2, SCMP_CMP_MASKED_EQ, kDirect, 0)});
  to.add(no_such, call("fcntl"), {equals(1, F_SETFL), SCMP_CMP64(2, SCMP_CMP_MASKED_EQ, kDirect, kDirect)});
  // Not F_SETOWN and F_SETSIG, which send signals, nor F_SETLEASE and F_NOTIFY, which hold others up.
  for (const int command :
       {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_GETLK, F_SETLK, F_SETLKW, F_OFD_GETLK, F_OFD_SETLK,
        F_OFD_SETLKW, F_GETPIPE_SZ, F_SETPIPE_SZ, F_ADD_SEALS, F_GET_SEALS}) {
    to.add(allow, call("fcntl"), {equals(1, static_cast<uint64_t>(command))});
  }
  // Advice, which may be ignored: to forget pages takes them from the page cache of everybody. 0: done.
  for (const int advice : {POSIX_FADV_NORMAL, POSIX_FADV_RANDOM, POSIX_FADV_SEQUENTIAL, POSIX_FADV_WILLNEED}) {
    to.add(allow, call("fadvise64"), {equals(3, static_cast<uint64_t>(advice))});
  }
  for (const int advice : {POSIX_FADV_DONTNEED, POSIX_FADV_NOREUSE}) {
    to.add(SCMP_ACT_ERRNO(0), call("fadvise64"), {equals(3, static_cast<uint64_t>(advice))});
  }
  // Families that network namespaces hold. (AF_VSOCK, for one, reaches the machine's hypervisor from any.)
  for (const int family : {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}) {
    to.add(allow, call("socket"), {equals(0, static_cast<uint64_t>(family))});
  }
  // The calling thread only: other numbers can be the supervisor's.
  for (const char* name : {"prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"}) {
    to.add(allow, call(name), {equals(0, 0)});
    to.add(refuse, call(name), {SCMP_CMP64(0, SCMP_CMP_GT, 0, 0)});
  }
  static_assert(PRIO_PROCESS == 0);
  to.add(allow, call("setpriority"), {equals(0, PRIO_PROCESS), equals(1, 0)});
  constexpr uint64_t kIoprioProcess = 1;  // linux/ioprio.h
  to.add(allow, call("ioprio_set"), {equals(0, kIoprioProcess), equals(1, 0)});
}

std::vector<sock_filter> compile(const Policy& policy, Whose whose) {
  const bool supervisor = whose == Whose::kSupervisor, for_program = whose == Whose::kProgram;
  const scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
  if (ctx == nullptr) fail("no memory");
  seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
  seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
  const Context to{ctx};
  for (const auto& [call, rule] : policy) {
    if (rule.verb == "allow") to.add(SCMP_ACT_ALLOW, call);
    if (rule.verb == "supervisor") to.add(supervisor ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EPERM), call);
    if (rule.verb == "process") to.add(supervisor || for_program ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EPERM), call);
    if (rule.verb == "session") {
      const uint32_t pretend = SCMP_ACT_ERRNO(0), refuse = SCMP_ACT_ERRNO(EPERM);
      to.add(supervisor ? SCMP_ACT_ALLOW : (for_program ? pretend : refuse), call);
    }
    if (rule.verb == "filtered" && supervisor) to.add(SCMP_ACT_ALLOW, call);
    if (rule.verb == "refuse" && rule.error != ENOSYS) to.add(SCMP_ACT_ERRNO(static_cast<unsigned>(rule.error)), call);
  }
  if (!supervisor) add_filtered(to, whose);
  const int fd = memfd_create("bpf", MFD_CLOEXEC);
  if (fd < 0 || seccomp_export_bpf(ctx, fd) != 0) fail("cannot export the filter");
  const off_t bytes = lseek(fd, 0, SEEK_END);
  std::vector<sock_filter> program(static_cast<size_t>(bytes) / sizeof(sock_filter));
  if (pread(fd, program.data(), static_cast<size_t>(bytes), 0) != bytes) fail("cannot read the filter back");
  close(fd);
  seccomp_release(ctx);
  return program;
}

void print(std::ostream& out, const char* name, const std::vector<sock_filter>& program) {
  out << "inline constexpr sock_filter " << name << "[] = {\n";
  for (const sock_filter& one : program) {
    out << "    {" << one.code << ", " << unsigned{one.jt} << ", " << unsigned{one.jf} << ", " << one.k << "U},\n";
  }
  out << "};\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) fail("usage: freeride-seccomp-compile POLICY HEADER");
  const Policy policy = read_policy(argv[1]);
  std::ofstream out(argv[2]);
  out << "// Made from containers/seccomp/side-task.policy.\n#pragma once\n\n#include <linux/filter.h>\n\n"
         "namespace freeride::seccomp {\n\n";
  print(out, "kPlugin", compile(policy, Whose::kPlugin));
  print(out, "kProgram", compile(policy, Whose::kProgram));
  print(out, "kSupervisor", compile(policy, Whose::kSupervisor));
  out << "\n}  // namespace freeride::seccomp\n";
  out.close();
  if (!out) fail(std::string("cannot write ") + argv[2]);
  return 0;
}
