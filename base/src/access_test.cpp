#include "freeride/base/access.hpp"

#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <functional>

#include "freeride/base/fd.hpp"
#include "freeride/base/testing/temp_folder.hpp"

using namespace freeride;

namespace {

constexpr uid_t kStranger = 65534;

// What `question` answers to another user of the host; only root can ask as one.
std::string as_stranger(const std::function<Status()>& question) {
  int ends[2] = {};
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgroups(0, nullptr) != 0 || setgid(kStranger) != 0 || setuid(kStranger) != 0) _exit(2);
    const Status status = question();
    const std::string text = status ? "ok" : std::string(to_string(status.error().code)) + ": " + status.error().text();
    _exit(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 3);
  }
  close(ends[1]);
  char text[4096];
  const ssize_t size = read(ends[0], text, sizeof text);
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  return {text, static_cast<size_t>(size)};
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Fd listen_at(const std::filesystem::path& path, mode_t mode) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(chmod(path.c_str(), mode) == 0);
  REQUIRE(listen(fd.get(), 4) == 0);
  return fd;
}

}  // namespace

TEST_CASE("a run folder that others may change is not believed") {
  const testing::TempFolder folder;
  CHECK(check_run_folder(folder.path()).ok());
  CHECK(check_run_folder(folder.path() / "none").error().code == Code::kNotFound);
  for (const mode_t mode : {0775, 0757, 01777}) {
    REQUIRE(chmod(folder.path().c_str(), mode) == 0);
    const auto refused = check_run_folder(folder.path());
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == Code::kPermission);
    CHECK(holds(refused.error().hint, "chmod go-w"));
  }
}

TEST_CASE("a run folder that is made is one to be believed, whatever the umask") {
  const testing::TempFolder folder;
  const mode_t before = umask(0);
  const auto made = make_run_folder(folder.path() / "run");
  umask(before);
  CHECK(made.ok());
  REQUIRE(chmod((folder.path() / "run").c_str(), 0777) == 0);
  CHECK_FALSE(make_run_folder(folder.path() / "run").ok());  // of others: said, not mended
}

TEST_CASE("a run folder that somebody else has made first is not believed") {
  if (geteuid() != 0) return;  // only root can make files of other users
  const testing::TempFolder folder;
  REQUIRE(chmod(folder.path().c_str(), 01777) == 0);  // as /tmp
  const auto squatted = folder.path() / "freeride-0";
  std::filesystem::create_directory(squatted);
  REQUIRE(chmod(squatted.c_str(), 0755) == 0);
  REQUIRE(chown(squatted.c_str(), kStranger, kStranger) == 0);
  const auto refused = check_run_folder(squatted);
  REQUIRE_FALSE(refused.ok());
  CHECK(holds(refused.error().text(), user_name(kStranger)));
  CHECK(holds(refused.error().hint, "--run-dir"));
  CHECK_FALSE(check_socket(squatted / "commands.sock").ok());
  // Through a link of theirs to a folder of ours: they could turn it to another at any time.
  const auto ours = folder.path() / "ours";
  std::filesystem::create_directory(ours);
  std::filesystem::create_directory_symlink(ours, folder.path() / "link");
  CHECK(check_run_folder(folder.path() / "link").ok());
  REQUIRE(lchown((folder.path() / "link").c_str(), kStranger, kStranger) == 0);
  CHECK_FALSE(check_run_folder(folder.path() / "link").ok());
}

TEST_CASE("a run folder that only root could have put there may be given to a service's user") {
  if (geteuid() != 0) return;
  const testing::TempFolder folder;
  REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
  const auto given = folder.path() / "run";
  std::filesystem::create_directory(given);
  REQUIRE(chown(given.c_str(), kStranger, kStranger) == 0);
  CHECK(check_run_folder(given).ok());
  REQUIRE(chmod(given.c_str(), 0775) == 0);
  CHECK_FALSE(check_run_folder(given).ok());
  REQUIRE(chmod(given.c_str(), 0755) == 0);
  REQUIRE(chmod(folder.path().c_str(), 01777) == 0);  // anybody could have made it
  CHECK_FALSE(check_run_folder(given).ok());
}

TEST_CASE("permission denied is told as that, with what to do") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "commands.sock";
  CHECK(check_socket(path).ok());  // nothing there yet
  const Fd listener = listen_at(path, 0600);
  CHECK(check_socket(path).ok());
  if (geteuid() != 0) return;
  REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
  std::string told = as_stranger([&] { return check_socket(path); });
  CHECK(holds(told, "permission: "));
  CHECK(holds(told, "for root only"));
  CHECK(holds(told, "run this as root"));
  REQUIRE(chmod(path.c_str(), 0660) == 0);
  told = as_stranger([&] { return check_socket(path); });
  CHECK(holds(told, "usermod -aG root"));
  REQUIRE(chmod(folder.path().c_str(), 0700) == 0);
  CHECK(holds(as_stranger([&] { return check_socket(path); }), "permission: "));
}

TEST_CASE("who listens at a socket is believed only as this user or root") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "s.sock";
  const auto connected = [&] {
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return fd;
  };
  const Fd listener = listen_at(path, 0666);
  CHECK(check_listener(connected().get(), path).ok());
  CHECK(peer_of(connected().get())->uid == geteuid());
  if (geteuid() != 0) return;
  // listen() notes who calls it.
  REQUIRE(seteuid(kStranger) == 0);
  REQUIRE(listen(listener.get(), 4) == 0);
  REQUIRE(seteuid(0) == 0);
  const auto refused = check_listener(connected().get(), path);
  REQUIRE_FALSE(refused.ok());
  CHECK(holds(refused.error().message, "listens at " + path.string()));
}

TEST_CASE("a private folder is not listed or written by others") {
  const testing::TempFolder folder;
  const auto state = folder.path() / "state";
  std::filesystem::create_directory(state);
  REQUIRE(chmod(state.c_str(), 0777) == 0);
  REQUIRE(make_private_folder(state, std::nullopt).ok());
  struct stat info {};
  REQUIRE(stat(state.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0751);
  CHECK(make_private_folder(state / "new", std::nullopt).ok());
}

TEST_CASE("operators are a group that is there") {
  CHECK_FALSE(*operators_group("none"));
  const auto missing = operators_group("no such group");
  REQUIRE_FALSE(missing.ok());
  CHECK(holds(missing.error().hint, "groupadd"));
  CHECK(operators_group(getgrgid(0)->gr_name)->value() == 0);
  CHECK(user_name(0) == "root");
  const auto groups = groups_of_user(0);
  REQUIRE(groups.ok());
  CHECK(group_name(groups->first) == getgrgid(0)->gr_name);
  CHECK(std::find(groups->all.begin(), groups->all.end(), gid_t{0}) != groups->all.end());
  CHECK(groups_of_user(4'000'000'000).error().code == Code::kNotFound);
  CHECK(user_name(4'000'000'000) == "uid 4000000000");
}

TEST_CASE("another user's process that /proc hides is not taken for one that has ended") {
  CHECK(process_exists(getpid()));
  if (geteuid() != 0) return;
  const pid_t other = fork();
  if (other == 0) {
    if (setuid(kStranger) != 0) _exit(1);
    for (;;) pause();
  }
  const pid_t looks = fork();
  if (looks == 0) {
    constexpr int kCannotMount = 77;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", 0, "hidepid=2") != 0)
      _exit(kCannotMount);
    // The group root, which the option gid= names unless it is given, sees everybody.
    if (setgroups(0, nullptr) != 0 || setgid(kStranger) != 0 || setuid(kStranger - 1) != 0) _exit(2);
    _exit(!user_of_process(other) && process_exists(other) ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(looks, &status, 0) == looks);
  kill(other, SIGKILL);
  REQUIRE(waitpid(other, nullptr, 0) == other);
  if (WEXITSTATUS(status) == 77) return;  // in a container
  CHECK(status == 0);
  CHECK_FALSE(process_exists(other));
}
