#include "freeride/base/python_env.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "freeride/base/fd.hpp"

namespace freeride {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 16;
constexpr size_t kMostConfigBytes = 64u << 10;

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

// "key = value" lines of a pyvenv.cfg; empty when there is none. The file is a user's: a pipe must not hold its reader
// up, and a device not fill its memory.
std::map<std::string, std::string> read_config(const fs::path& file) {
  std::map<std::string, std::string> values;
  const Fd fd(open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return values;
  std::string text(kMostConfigBytes, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(fd.get(), text.data(), text.size()))));
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) values[trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
  }
  return values;
}

// "3.11" of "3.11.2", "python3.11", "cpython-3.11"; "" of anything else.
std::string version_in(const std::string& text) {
  const auto at = text.find("3.");
  if (at == std::string::npos) return "";
  auto end = at + 2;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  return end == at + 2 ? "" : text.substr(at, end - at);
}

// The one version whose library folder is there; "" when there are none or several.
std::string only_version(const fs::path& base) {
  std::set<std::string> found;
  std::error_code error;
  for (auto it = fs::directory_iterator(base / "lib", error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().rfind("python3.", 0) == 0 && fs::exists(it->path() / "os.py", ignored))
      found.insert(version_in(it->path().filename().string()));
  }
  return found.size() == 1 ? *found.begin() : "";
}

// A prefix whose libraries every sandbox has anyway, and whose other content is not the task's business.
bool is_system(const fs::path& prefix) {
  return prefix == "/usr" || prefix == "/usr/local" || prefix == "/";
}

Error no_layout(const std::string& executable, const fs::path& base) {
  return Error{Code::kInvalidArgument,
               executable + " is no Python 3: there is no " + base.string() + "/lib/python3.*/os.py",
               "name the python3 of an installation or a virtual environment with --python"};
}

}  // namespace

Result<PythonEnvironment> find_python(const std::string& executable) {
  const fs::path given = fs::path(executable).lexically_normal();
  if (!given.is_absolute() || given.filename().empty()) {
    return Error{Code::kInvalidArgument, "--python " + executable + " is not an absolute path",
                 "give one, e.g. /usr/bin/python3"};
  }
  std::error_code error;
  const fs::path real = fs::canonical(given, error);
  if (error || !fs::is_regular_file(real, error))
    return Error{Code::kNotFound, "there is no Python at " + executable, "name one with --python"};

  PythonEnvironment environment;
  const fs::path prefix = given.parent_path().parent_path();
  const auto config = read_config(prefix / "pyvenv.cfg");
  const bool is_venv = config.count("home") != 0;
  environment.executable = is_venv ? given : real;
  const fs::path base = is_venv ? fs::weakly_canonical(fs::path(config.at("home")).parent_path(), error)
                                : real.parent_path().parent_path();
  for (const char* key : {"version", "version_info"}) {
    if (environment.version.empty() && config.count(key) != 0) environment.version = version_in(config.at(key));
  }
  if (environment.version.empty()) environment.version = version_in(real.filename().string());
  if (environment.version.empty()) environment.version = only_version(base);
  const fs::path standard_library = base / "lib" / ("python" + environment.version);
  if (environment.version.empty() || !fs::exists(standard_library / "os.py", error)) return no_layout(executable, base);

  if (is_venv) environment.paths.push_back(prefix);
  if (is_system(base)) {
    environment.paths.push_back(real);
  } else {
    environment.paths.push_back(base);
  }
  // Links on the way from a virtual environment to its interpreter.
  fs::path link = given;
  for (int links = 0; is_venv && links < kMostLinks && fs::is_symlink(link, error); ++links) {
    const fs::path target = fs::read_symlink(link, error);
    link = (target.is_absolute() ? target : link.parent_path() / target).lexically_normal();
    if (link != real && link.string().rfind(prefix.string() + "/", 0) != 0) environment.paths.push_back(link);
  }

  const std::string folder = "python" + environment.version;
  for (const fs::path& place : {prefix / "lib" / folder / "site-packages", base / "lib" / folder / "site-packages",
                                fs::path("/usr/local/lib") / folder / "dist-packages"}) {
    if (environment.torch.empty() && fs::exists(place / "torch/lib", error)) environment.torch = place / "torch/lib";
  }

  const std::string name = "libpython" + environment.version + ".so.1.0";
  std::vector<fs::path> places{base / "lib" / name, base / "lib64" / name};
#if defined(__x86_64__)
  places.push_back(base / "lib/x86_64-linux-gnu" / name);
#elif defined(__aarch64__)
  places.push_back(base / "lib/aarch64-linux-gnu" / name);
#endif
  for (const fs::path& place : places) {
    if (environment.library.empty() && fs::exists(place, error)) environment.library = place;
  }
  if (environment.library.empty()) {
    return Error{
        Code::kNotFound, executable + " has no shared library " + name + " under " + (base / "lib").string(),
        "install it (Debian, Ubuntu: apt install libpython" + environment.version +
            "), build that Python with --enable-shared (pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared), or take "
            "conda's or uv's"};
  }
  return environment;
}

}  // namespace freeride
